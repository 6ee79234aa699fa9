"""Names of objects."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob_operator.api import names
from examples import tries

PART = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN, HOST, SERVICE = rf"{PART}(\.{PART})*", PART, "[a-z]([-a-z0-9]*[a-z0-9])?"
LABEL = "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
MOST_INDEX = 10**9 - 1
# Every name that is derived from that of a job: how long it may be, and its shape, for its kind.
DERIVED: dict[str, tuple[Callable[[str], str], int, str]] = {
    "label": (names.label, 63, LABEL),
    "pod": (lambda job: names.pod_name(job, 0), 253, SUBDOMAIN),
    "last pod": (lambda job: names.pod_name(job, MOST_INDEX), 253, SUBDOMAIN),
    "host": (lambda job: names.host_name(job, 0), 63, HOST),
    "last host": (lambda job: names.host_name(job, MOST_INDEX), 63, HOST),
    "Service": (names.service_name, 63, SERVICE),
    "PodDisruptionBudget": (names.disruption_budget_name, 253, SUBDOMAIN),
    "NetworkPolicy": (names.network_policy_name, 253, SUBDOMAIN),
    "certificate": (names.ca_config_map_name, 253, SUBDOMAIN),
    "code": (lambda job: names.code_config_map_name(job, "0123456789abcdef"), 253, SUBDOMAIN),
    "autoscaler": (names.autoscaler_name, 253, SUBDOMAIN),
    "PodGroup": (names.pod_group_name, 63, LABEL),
    "event": (lambda job: names.event_name(job, "0" * 64), 253, SUBDOMAIN),
    "Workload": (lambda job: names.workload_name(job, "0123-4567-89", MOST_INDEX), 253, SUBDOMAIN),
}


def is_name(text: str) -> bool:
    return len(text) <= 253 and re.fullmatch(SUBDOMAIN, text) is not None


LETTERS = st.text("ab1-.", min_size=1, max_size=253)
JOBS = st.one_of(
    LETTERS.filter(is_name),
    st.builds(lambda start, length, end: start + "x" * length + end, st.sampled_from(["", "1", "a.b-"]),
              st.integers(1, 248), st.sampled_from(["", "1", ".2"])),
)  # fmt: skip


@pytest.mark.parametrize("kind", DERIVED)
@given(job=JOBS)
def test_a_derived_name_is_valid_stable_and_readable(kind: str, job: str) -> None:
    derive, most, shape = DERIVED[kind]
    name = derive(job)
    assert len(name) <= most
    assert re.fullmatch(shape, name), name
    assert derive(job) == name
    assert job.replace(".", "-")[:20].rstrip("-") in name.replace(".", "-"), "people recognize the job"


@pytest.mark.parametrize("kind", DERIVED)
@given(pair=st.lists(JOBS, min_size=2, max_size=2, unique=True))
def test_different_jobs_have_different_names(kind: str, pair: list[Any]) -> None:
    derive = DERIVED[kind][0]
    assert derive(pair[0]) != derive(pair[1])


@pytest.mark.parametrize("kind", DERIVED)
@tries(few=20, many=200)
@given(job=JOBS)
def test_no_other_job_is_called_after_what_is_derived(kind: str, job: str) -> None:
    """A name that fits is kept at the start of what is derived from it, so these are all that could have it as well."""
    derive = DERIVED[kind][0]
    name = derive(job)
    others = [start for length in range(1, len(name) + 1) if is_name(start := name[:length]) and start != job]
    assert [other for other in others if derive(other) == name] == []


@tries(few=20, many=200)
@given(job=JOBS, digest=st.text("0123456789abcdef", min_size=10, max_size=10))
def test_no_certificate_has_the_name_of_code(job: str, digest: str) -> None:
    for name in (names.ca_config_map_name(job), names.code_config_map_name(job, digest)):
        for start in (name[:length] for length in range(1, len(name)) if is_name(name[:length])):
            assert (
                name not in {names.ca_config_map_name(start), names.code_config_map_name(start, digest)} or start == job
            )


@given(job=JOBS, indices=st.lists(st.integers(0, MOST_INDEX), min_size=2, max_size=2, unique=True))
def test_different_pods_have_different_names(job: str, indices: list[int]) -> None:
    assert names.pod_name(job, indices[0]) != names.pod_name(job, indices[1])
    assert names.host_name(job, indices[0]) != names.host_name(job, indices[1])


@pytest.mark.parametrize("job", ["digits", "x" * 52])
def test_a_short_name_is_kept_whole(job: str) -> None:
    assert names.host_name(job, 11) == names.pod_name(job, 11) == f"{job}-worker-11"
    assert names.label(job) == names.pod_group_name(job) == job
    assert names.service_name(job) == names.network_policy_name(job) == f"{job}-workers"


def test_what_stands_for_a_name_that_does_not_fit() -> None:
    assert names.host_name("llama-3.1-8b", 2) == "llama-3-1-8b-worker-2-7b633509d094d2d3"
    assert names.pod_name("llama-3.1-8b", 2) == "llama-3.1-8b-worker-2"
    assert names.service_name("3d-unet") == "job-3d-unet-workers-c3f6ebbebf811f51"


def test_names_are_functions_of_the_job() -> None:
    assert names.pod_name("digits", 3) == "digits-worker-3"
    assert names.service_name("digits") == "digits-workers"
    assert names.selector("digits") == "elasticjob.dev/job-name=digits"


def test_our_names_carry_our_group() -> None:
    ours = [v for k, v in vars(names).items() if k.startswith(("LABEL_JOB", "LABEL_INDEX", "ANNOTATION_"))]
    assert all(v.startswith("elasticjob.dev/") for v in ours)
