"""The order in which the test processes take the files: those that need a cluster first, and each time the slow ones.

Otherwise xdist takes the files with the most tests first. Those are the quick ones, and a file of two minutes was left
for the end, where one process worked and the others had nothing to do. A cluster costs a twentieth of a core even if
nobody uses it: it is stopped before the tests that need none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

# Files whose tests share a second cluster: one process takes them all, so that there is one such cluster.
AUDITED: Final = (
    "integration/test_leadership.py",
    "integrations/test_kueue_rights.py",
    "manifests/test_rbac.py",
    "manifests/test_rbac_cli.py",
    "manifests/test_transcript.py",
)

# Files of more than about ten seconds, by their time in a run of `make test`; the order need not be exact.
SLOWEST: Final = (
    "integration/test_foreign.py",
    "worker/sessions/test_sharded.py",
    "integration/test_endings.py",
    "integration/test_gallery.py",
    "devcluster/test_devcluster_newcomer.py",
    "launch/test_local.py",
    "integration/test_pool.py",
    "worker/sessions/test_shard_replicas.py",
    "controller/pool/test_pool_histories.py",
    "manifests/test_chart_release.py",
    "devcluster/test_devcluster_faults.py",
    "worker/launch/test_run.py",
    "integration/test_lifecycle.py",
    "integration/test_training.py",
    "integration/test_checkpoints.py",
    "integration/test_sessions.py",
    "integration/test_strange_objects.py",
    "worker/sessions/test_regroups.py",
    "worker/launch/test_preload.py",
    "integration/test_lifecycle_more.py",
    "integrations/test_kueue_random.py",
    "integration/test_benchmarks_counts.py",
    "worker/diagnose/test_verify.py",
    "worker/sessions/test_session.py",
    "integrations/test_kueue_page.py",
    "worker/test_examples.py",
    "worker/agent/test_rendezvous.py",
    "integrations/test_kueue.py",
    "controller/pool/test_allocate_properties.py",
    "worker/peers/test_keeper.py",
    "integration/test_hostile_objects.py",
    "worker/test_packaging_worker.py",
    "dashboard/test_live.py",
    "devcluster/test_devcluster_pods.py",
    "test_random_mistakes.py",
    "launch/test_submit.py",
    "controller/hub/test_doors.py",
    "launch/test_notebook.py",
    "integration/test_metrics_move.py",
    "worker/torchcompat/test_fallbacks.py",
    "dashboard/test_command.py",
    "integration/test_strangers.py",
    "controller/simulation/test_random.py",
    "controller/html_report/test_html_report.py",
    "integration/test_templates.py",
    "controller/cli/test_cli.py",
    "integrations/test_kubernetes.py",
    "worker/diagnose/test_doctor.py",
    "worker/sessions/test_world_failure.py",
    "controller/hub/test_hostile.py",
    "worker/collectives/test_collectives.py",
    "worker/channel/test_progress.py",
    "controller/simulation/test_backoff.py",
    "worker/launch/test_fork_server.py",
)
_PLACES: Final = {file: place for place, file in enumerate((*AUDITED, *SLOWEST))}
CLUSTERS: Final = frozenset({"cluster", "audited"})  # fixtures
NONE: Final[frozenset[str]] = frozenset()
UNNEEDED: Final = pytest.StashKey[frozenset[str]]()


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/")


def sort(items: list[pytest.Item]) -> None:
    """Also note with each test the clusters that neither its file nor a later one needs."""
    needs: dict[str, frozenset[str]] = {}
    for item in items:
        file = file_of(item.nodeid)
        needs[file] = needs.get(file, NONE) | CLUSTERS.intersection(getattr(item, "fixturenames", ()))
    items.sort(key=lambda item: place_of(file_of(item.nodeid), needs))
    later = NONE
    for item in reversed(items):
        later |= needs[file_of(item.nodeid)]
        item.stash[UNNEEDED] = CLUSTERS - later


def place_of(file: str, needs: Mapping[str, frozenset[str]]) -> tuple[bool, int]:
    return not needs[file], _PLACES.get(file, len(_PLACES))


def are_in_order(config: pytest.Config) -> bool:
    """Whether each process takes the tests in the order of the list."""
    return not config.getoption("loadscopereorder") or not hasattr(config, "workerinput")


class Scheduling(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """A process takes a file, or all files that share the second cluster."""

    def _split_scope(self, nodeid: str) -> str:
        return "audited" if file_of(nodeid) in AUDITED else str(super()._split_scope(nodeid))
