"""What the operator deletes of a job that was deleted, in which order, and what it leaves."""

from __future__ import annotations

import pytest

from elasticjob_operator.api import names
from elasticjob_operator.model.ownership import Dependent
from elasticjob_operator.plan.children import choose_left_over

WORKER = Dependent("Pod", "digits-worker-0", "u0", "5")
ENDING = Dependent("Pod", "digits-worker-1", "u1", "5", is_going=True)
BUDGET = Dependent("PodDisruptionBudget", names.disruption_budget_name("digits"), "b", "5")
SCALER = Dependent("HorizontalPodAutoscaler", names.autoscaler_name("digits"), "a", "5")
POLICY = Dependent("NetworkPolicy", names.network_policy_name("digits"), "n", "5")
SERVICE = Dependent("Service", names.service_name("digits"), "s", "5")
CERTIFICATE = Dependent("ConfigMap", names.ca_config_map_name("digits"), "c", "5")
GROUP = Dependent("PodGroup", names.pod_group_name("digits"), "g", "5")
STRANGER = Dependent("NetworkPolicy", "mine", "m", "5")


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        pytest.param((), (), id="nothing"),
        pytest.param(
            (BUDGET, WORKER, SCALER), (WORKER, BUDGET, SCALER), id="pods, and what is of no use without a job"
        ),
        pytest.param((POLICY, SERVICE, WORKER), (WORKER,), id="what pods need waits for them"),
        pytest.param((POLICY, SERVICE, ENDING), (), id="also in their grace period"),
        pytest.param((POLICY, SERVICE), (POLICY, SERVICE), id="and goes after them"),
        pytest.param((CERTIFICATE, GROUP), (), id="no right to delete it"),
        pytest.param((STRANGER,), (), id="another name than the operator gives"),
    ],
)
def test_what_goes_now(left: tuple[Dependent, ...], expected: tuple[Dependent, ...]) -> None:
    assert choose_left_over("digits", left) == expected
