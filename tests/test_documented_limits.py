"""The table of limits in docs/operations.md says what the code has."""

from __future__ import annotations

from pathlib import Path

from elasticjob.channel import progress
from elasticjob.collectives import layout, messages
from elasticjob.launch import leading
from elasticjob.peers import transport
from elasticjob_operator.api import bounds, podtemplate, wire
from elasticjob_operator.apply import events
from elasticjob_operator.client import logs
from elasticjob_operator.dashboard import looking, server, streams
from elasticjob_operator.history import faulty_nodes, memory, rank_failures, worlds
from elasticjob_operator.integrations.kueue import asking, store
from elasticjob_operator.kube import client, job_room, status_room
from elasticjob_operator.launch import bundle, function, run
from elasticjob_operator.model import reading
from elasticjob_operator.plan import reporting
from elasticjob_operator.pool import rounds
from elasticjob_operator.rest import json_stream
from elasticjob_operator.run import http, metrics, news, otlp, overdue_pods, quiet_pods, templates, tracing

OPERATIONS = Path(__file__).resolve().parents[1] / "docs/operations.md"
LIMITS = {
    "pods of a job, with spares": bounds.Limits().replicas,
    "pods of a job that the operator looks at": 2 * bounds.Limits().replicas,
    "bytes of a pod template": bounds.Limits().template_bytes,
    "bytes of memory that the spec of a job takes by itself": job_room.KEPT_BYTES,
    "jobs of a namespace whose specs take so much by themselves": job_room.KEPT_JOBS,
    "bytes of that room, of all jobs": job_room.MOST_KEPT_BYTES,
    "bytes of memory that the status of a job without pods takes by itself": status_room.KEPT_BYTES,
    "jobs of a namespace whose statuses take so much by themselves": status_room.KEPT_JOBS,
    "bytes of the room for statuses, of all jobs": status_room.MOST_KEPT_BYTES,
    "bytes of the rest of a spec": bounds.MOST_SPEC_BYTES,
    "bytes of an ElasticJobTemplate": bounds.MOST_TEMPLATE_BYTES,
    "levels of a spec": bounds.MOST_DEPTH,
    "values in a spec": bounds.MOST_VALUES,
    "containers of a pod, and init containers": podtemplate.MOST_CONTAINERS,
    "characters of the name of a container": podtemplate.LONGEST_NAME,
    "resources that a container names": podtemplate.MOST_RESOURCES,
    "amounts of resources that a pod names": podtemplate.MOST_AMOUNTS,
    "terms of a pod's required node affinity": podtemplate.MOST_TERMS,
    "amounts of CPU and memory in a template whose pods are resized in place": podtemplate.MOST_SIZES,
    "processes of a pod": podtemplate.MOST_PROCESSES,
    "values in an object of the API server": json_stream.MOST_VALUES,
    "bytes of an object of the API server that is read alone": client.MOST_OBJECT_BYTES,
    "bytes of an ElasticJobTemplate with its metadata, as JSON": templates.MOST_BYTES,
    "sizes of a job that the pool compares": rounds.MOST_SIZES,
    "bytes of an agent's message": wire.MAX_MESSAGE_BYTES,
    "characters of a condition's message": reporting.MOST_MESSAGE,
    "characters of all warnings about a spec, and of all that is wrong with it": reading.MOST_TOLD,
    "worlds in `status.timeline`": worlds.MOST_WORLDS,
    "reports in `status.progress.history`": memory.MOST_REPORTS,
    "failures in `status.failures`": rank_failures.MOST_FAILURES,
    "bytes of `status.failures`": rank_failures.MOST_BYTES,
    "nodes in `status.nodeFaults`": faulty_nodes.MOST_OF_A_STATUS,
    "nodes that new pods avoid because of faults": faulty_nodes.MOST_NODES,
    "events of a waiting pod that are read": quiet_pods.MOST_EVENTS,
    "bytes of the events of a waiting pod": quiet_pods.MOST_BYTES,
    "reads of the events of a namespace's waiting pods at once": int(quiet_pods.LISTS_AT_ONCE),
    "series of one kind of all namespaces, such as those of checked nodes": metrics.MOST_SERIES,
    "findings of a namespace's rules, and slow members, that become series of Prometheus": metrics.MOST_OF_A_NAMESPACE,
    "jobs that become series of Prometheus": metrics.MOST_JOBS,
    "bytes of pages of metrics that are being read": http.MOST_PAGE_BYTES,
    "checked nodes of a namespace that become series of Prometheus": metrics.MOST_OF_A_NAMESPACE,
    "pods of a job that should be gone and are read at a time": overdue_pods.MOST_AT_ONCE,
    "events that wait to be written": events.MAX_WAITING,
    "news of a namespace's jobs that are written to their statuses at once, beside one in 10 s of each job": (
        int(news.NAMESPACE_AT_ONCE)
    ),
    "metrics in a report of a script": progress.MAX_METRICS,
    "metrics of a job that become series of Prometheus": metrics.MOST_NAMES,
    "metrics of a namespace that become series of Prometheus": metrics.MOST_OF_A_NAMESPACE,
    "increments in which a queued job asks for quota": asking.MOST_INCREMENTS,
    "Workloads of a queued job": store.MOST_WORKLOADS,
    "Workloads of a namespace of which 8 KiB each are kept in any case": store.KEPT_WORKLOADS,
    "bytes that the operator keeps of all long Workloads, beyond 8 KiB of each": store.MOST_KEPT_BYTES,
    "dimensions of a tensor that `elasticjob.collectives` send": layout.MOST_DIMENSIONS,
    "bytes of one rank's part of a message between ranks": messages.MAX_BYTES,
    "modules of a script whose imports are made before its workers start": leading.MAX_FILES,
    "streams of a dashboard": streams.MOST_STREAMS,
    "streams of one viewer of a dashboard": streams.MOST_OF_ONE,
    "pages of jobs that a dashboard makes at the same time": server.MOST_PAGES,
    "pages of jobs of one viewer that it makes at the same time": server.MOST_PAGES_OF_ONE,
    "jobs whose pods and events a dashboard reads at the same time": looking.MOST_LOOKS,
    "pods whose logs all streams of a dashboard read": streams.MOST_PODS_IN_ALL,
    "bytes of lines of a log that wait for a viewer of a dashboard": streams.LOG_BYTES,
    "bytes of a line of a log": logs.MOST_LINE,
    "files of a code folder": bundle.MOST_FILES,
    "bytes of a code folder": bundle.MOST_BYTES,
    "levels of a code folder": bundle.MOST_LEVELS,
    "spans that wait for a collector of traces": otlp.MOST_WAITING,
    "events of a span": tracing.MOST_NOTES,
    "events of all spans that have not ended": tracing.MOST_IN_ALL,
    "bytes of the result of a launched function": function.MOST_RESULT_BYTES,
    "lines of its pod's log in which the result is looked for": run.MOST_LINES,
    "strangers at the port of an agent's checkpoints": transport.MOST_STRANGERS,
}


def test_the_documented_limits_are_those_of_the_code() -> None:
    section = OPERATIONS.read_text().partition("## Limits")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert {cells[0]: cells[1] for cells in rows} == {what: f"{most:,}" for what, most in LIMITS.items()}
