"""Names of objects."""

from __future__ import annotations

from elasticjob_operator.api import names


def test_names_are_functions_of_the_job() -> None:
    assert names.pod_name("digits", 3) == "digits-worker-3"
    assert names.service_name("digits") == "digits-workers"
    assert names.selector("digits") == "elasticjob.dev/job-name=digits"


def test_our_names_carry_our_group() -> None:
    ours = [v for k, v in vars(names).items() if k.startswith(("LABEL_JOB", "LABEL_INDEX", "ANNOTATION_"))]
    assert all(v.startswith("elasticjob.dev/") for v in ours)
