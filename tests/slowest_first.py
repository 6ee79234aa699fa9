"""The order in which the test processes take the files: the slow ones first.

Otherwise xdist takes the files with the most tests first, and those are the quick ones: a file of two minutes was left
for the end, where one process worked and the others had nothing to do.
"""

from __future__ import annotations

from typing import Final

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
    "integrations/test_kueue_rights.py",
    "integration/test_strange_objects.py",
    "worker/sessions/test_regroups.py",
    "manifests/test_rbac.py",
    "worker/launch/test_preload.py",
    "integration/test_lifecycle_more.py",
    "integrations/test_kueue_random.py",
    "integration/test_leadership.py",
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
    "manifests/test_transcript.py",
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
    "manifests/test_rbac_cli.py",
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
_PLACES: Final = {file: place for place, file in enumerate(SLOWEST)}


def place_of(nodeid: str) -> int:
    """Where the file of this test is in the order; all that are not listed come last, as they are."""
    return _PLACES.get(nodeid.partition("::")[0].removeprefix("tests/"), len(SLOWEST))
