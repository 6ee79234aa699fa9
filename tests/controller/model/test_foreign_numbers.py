"""Numbers that somebody else wrote: whatever the text, the answer is a number in range or one ValueError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob_operator import quantity
from elasticjob_operator.api import bounds, podtemplate
from elasticjob_operator.apply.manifests import gangs
from elasticjob_operator.model.observe import Job, observe_job, observe_pod
from elasticjob_operator.pool.capacity import Pool, count_units

HUGE = ("1e999999", "1e9999999", "-1e999999", "9" * 34, "9" * 5000, "1e-999999", "1" * 60_000, "٣", "1_000", " 1")
# What a number looks like, and what is only almost one.
NUMBERS = st.one_of(
    st.text(),
    st.from_regex(r"[+-]?[0-9]{0,40}\.?[0-9]{0,40}([eE][+-]?[0-9]{1,9}|[numkMGTPE]i?)?", fullmatch=True),
    st.sampled_from(HUGE),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
)


@given(NUMBERS)
def test_a_quantity_is_in_range_or_refused(value: object) -> None:
    try:
        amount = quantity.parse(value)
    except ValueError as error:
        assert len(str(error)) < 256
    else:
        assert amount == 0 or Decimal("1e-9") <= amount < 2**63
        assert len(quantity.write(amount)) < 32


@given(NUMBERS, st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]))
def test_units_are_in_range(value: object, resource: str) -> None:
    assert 0 <= count_units(resource, value) < 1000 * 2**63


def make_job(**spec: Any) -> Job:
    template = spec.pop("template", None) or make_template()
    raw = {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "j", "namespace": "evil", "uid": "u", "generation": 1},
        "spec": {"replicas": 1, "template": template, **spec},
    }
    return observe_job(raw)


def make_template(resources: Mapping[str, Any] | None = None, count: int = 1) -> dict[str, Any]:
    container = {"name": "w", "image": "x", "resources": {"limits": resources or {}}}
    return {"spec": {"containers": [{**container, "name": f"w{i}"} for i in range(count)]}}


@pytest.mark.parametrize("text", [one for one in HUGE if len(one) < 64])
def test_the_size_of_checkpoints_names_its_field(text: str) -> None:
    job = make_job(checkpoints={"path": "/c", "sizeLimit": text})
    assert [problem.field for problem in job.problems] == ["spec.checkpoints.sizeLimit"], job.problems


@pytest.mark.parametrize("resource", ["cpu", "memory", "nvidia.com/gpu", "example.com/part"])
@pytest.mark.parametrize("text", HUGE)
def test_an_amount_out_of_range_names_its_field(resource: str, text: str) -> None:
    job = make_job(template=make_template({resource: text}))
    assert job.spec is None
    assert [problem.field for problem in job.problems] == ["spec.template"]
    assert f"spec.containers[0].resources.limits[{resource}]" in job.problems_text
    assert len(job.problems_text) < 512


@pytest.mark.parametrize("text", HUGE)
def test_processes_of_a_pod_have_bounds(text: str) -> None:
    job = make_job(nprocPerNode=text)
    assert [problem.field for problem in job.problems] == ["spec.nprocPerNode"]
    assert len(job.problems_text) < 512


@pytest.mark.parametrize("wanted", ["auto", "cpu"])
def test_processes_that_resources_ask_for_have_bounds(wanted: str) -> None:
    template = make_template({"cpu": "9e18", "nvidia.com/gpu": "9000000000000000000"})
    assert 1 <= podtemplate.resolve_nproc(wanted, template) <= 1024


@pytest.mark.parametrize("text", HUGE)
def test_a_template_takes_no_more_memory_than_its_text(text: str) -> None:
    """Each amount of a template is kept: written out, one of eight characters would take a megabyte."""
    containers = make_template({"cpu": text, "memory": text}, 200)["spec"]["containers"]
    sizes = podtemplate.find_sizes(containers)
    assert sum(len(amount) for *_, amount in sizes) <= len(sizes) * 64


@pytest.mark.parametrize("text", HUGE)
def test_a_gang_asks_for_what_can_be_read(text: str) -> None:
    job = make_job(replicas=100)
    assert job.spec is not None
    spec = job.spec.model_copy(update={"template": make_template({"cpu": text})})
    assert gangs.find_least(spec) == {}


@pytest.mark.parametrize("text", HUGE)
def test_a_pool_counts_no_such_pods(text: str) -> None:
    for resource in ("cpu", "nvidia.com/gpu"):
        assert Pool("p", resource).accepts(make_template({resource: text})) is False


@pytest.mark.parametrize("index", ["٣", "9" * 10, "9" * 5000, "1_0", " 1", "+1", "-1", "1e3", "0x1", ""])
def test_an_index_that_is_none_makes_no_worker(index: str) -> None:
    labels = {"elasticjob.dev/job-name": "j", "elasticjob.dev/replica-index": index}
    assert observe_pod({"metadata": {"name": "p", "uid": "u", "labels": labels}, "spec": {}, "status": {}}) is None


READERS: tuple[Callable[[str], object], ...] = (
    lambda text: make_job(nprocPerNode=text),
    lambda text: make_job(health={"hangTimeoutSeconds": text}),
    lambda text: make_job(replicas=text),
    lambda text: make_job(checkpoints={"path": "/c", "sizeLimit": text}),
    lambda text: make_job(template=make_template({"cpu": text, "nvidia.com/gpu": text})),
)


@given(NUMBERS.filter(lambda value: value is not None), st.sampled_from(READERS))
def test_no_number_of_a_job_raises(value: Any, read: Callable[[Any], Any]) -> None:
    job = read(value)
    assert job.problems or job.spec is not None
    assert len(job.problems_text) <= 4096


def test_a_long_text_is_no_number() -> None:
    """The limit of a spec is a quarter of a megabyte; each text of it may be a number's."""
    text = "1" * (bounds.Limits().template_bytes // 2)
    assert make_job(template=make_template({"cpu": text})).spec is None
