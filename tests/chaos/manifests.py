"""Any manifest, any cluster: jobs as people write them, side by side on nodes that run nothing.

Each job has a namespace with neighbours of its own. It is watched for a little more than a minute, and has to train, to
be refused when it is applied, or to say what is in the way in words of its manifest or of the cluster. None is silent
for a minute, and none loops: the audit log has the operator's requests by namespace.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from chaos import manifest_judge, manifest_maker, manifest_pods, manifest_texts, webhooks
from chaos.light_nodes import HERE, LightNodes
from chaos.manifest_judge import FOREIGN, SILENT, TOLD, TRAINS
from chaos.manifest_maker import Made, Object
from chaos.trials import Report
from elasticjob_devcluster import Cluster, KubeError, Tuning
from elasticjob_operator.api import names
from integrations import kueue_kinds
from integrations.kueue_standin import StandIn
from operator_fixture import GROUP, OperatorProcess, install_crd, wait_for
from replicas_fixture import AGENT, READS

SIDE_BY_SIDE: Final = 600  # jobs: with them two cores are busy, and a plain one trains within six seconds
POLL_SECONDS: Final = 1.0
QUEUE_SECONDS: Final = 0.5
TELL_SECONDS: Final = 60.0
RECOVER_SECONDS: Final = 15.0  # for a job that has just lost a pod, to train with all again or to say why not
RECHECK_SECONDS: Final = 3.0
MOST_SLACK_SECONDS: Final = 120.0  # that a busy machine may add
POLICY: Final[dict[str, Any]] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "users": ["system:apiserver", "devcluster-control-plane"]},
        {"level": "None", "verbs": ["watch", "list"]},
        {"level": "Metadata"},
    ],
}
Starter = Callable[..., Cluster]
# Of no job: what the operator asks or writes for itself.
_OWN: Final = ("leases", "tokenreviews")


@dataclass
class Watched:
    """One job that was applied."""

    made: Made
    name: str
    began: float
    last: str = SILENT
    answered: float | None = None  # when it first trained or told why not
    said: str = ""  # last
    trained: bool = False
    due: float = 0.0  # how long after its beginning it is judged again
    status: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """What became of all."""

    ends: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    made: dict[str, Made] = field(default_factory=dict)  # by namespace
    compared: int = 0  # jobs of which a pod was compared with their template


def run(
    seed: int,
    count: int,
    directory: Path,
    *,
    side_by_side: int = SIDE_BY_SIDE,
    watch_seconds: float = manifest_judge.SILENT_SECONDS,
    texts: int = len(manifest_texts.TEXTS),
    start: Starter = Cluster.start,
) -> Report:
    """So many jobs in a cluster of their own, of which the first are whole manifests as people have written them.

    Only a watch of a minute or more finds silent jobs.
    """
    report, began = Report("manifests", seed), time.monotonic()
    directory = directory / "manifests"
    directory.mkdir()
    policy = directory / "audit-policy.json"
    policy.write_text(json.dumps(POLICY))
    never = ("--node-monitor-grace-period=24h",)  # these nodes renew no Lease
    tuning = Tuning(audit=True, apiserver_flags=(f"--audit-policy-file={policy}",), controller_manager_flags=never)
    cluster = start(nodes=(), tuning=tuning)
    try:
        with _playing(cluster, directory) as (operator, nodes):
            play = _Run(cluster, seed, side_by_side, watch_seconds, texts)
            outcome = play.play(count)
        outcome.violations += [f"the nodes: {wrong}" for wrong in nodes.wrong[:5]]
        log = operator.log
        bugs = [word for word in ("this is a bug", "Traceback") if word in log]
        outcome.violations += [f"the operator: {b!r} in {log[max(0, log.index(b) - 500) :][:3000]}" for b in bugs]
        requests = _judge_requests(cluster, outcome)
    finally:
        cluster.stop()
    report.histories, report.faults = count, outcome.ends[TOLD] + outcome.ends["refused"]
    report.violations, report.seconds = outcome.violations, time.monotonic() - began
    report.more = {"kubernetes": cluster.version, "ends": dict(outcome.ends), **requests}
    report.more["compared with their template"] = outcome.compared
    report.more["a plain job trains within seconds"] = round(play.slowest, 1)
    report.more["reasons"] = dict(outcome.reasons.most_common())
    print("\n".join([*report.violations, report.line()]), flush=True)
    return report


@contextlib.contextmanager
def _playing(cluster: Cluster, directory: Path) -> Iterator[tuple[OperatorProcess, LightNodes]]:
    install_crd(cluster)
    kube = cluster.kube
    claims = manifest_maker.CLUSTER_DEVICES if kube.get("/apis/resource.k8s.io/v1") else ()
    kinds = {kind["name"] for kind in kube.request("GET", "/apis/admissionregistration.k8s.io/v1")["resources"]}
    policies = manifest_maker.CLUSTER_POLICIES if "validatingadmissionpolicies" in kinds else ()
    kueue_kinds.install(cluster, kueue_kinds.build())
    for path, body in (*manifest_maker.CLUSTER_OBJECTS, *claims, *policies, *manifest_maker.CLUSTER_QUEUES):
        kube.request("POST", path, body)
    runtime = f"{HERE}runtime:1"  # each pod has the container that installs it
    flags = ("--stable-seconds", "1", "--integrations", "kueue", "--runtime-image", runtime)
    operator = OperatorProcess(cluster, directory, *flags)
    nodes = LightNodes(cluster, manifest_maker.NODES)
    (directory / "pki").mkdir()
    queues = StandIn(cluster, QUEUE_SECONDS)
    with webhooks.serving(cluster, directory / "pki"), nodes.running(), queues.running():
        cluster.wait_nodes_ready([node.name for node in manifest_maker.NODES])
        operator.start()
        try:
            yield operator, nodes
        finally:
            operator.stop()


class _Run:
    def __init__(self, cluster: Cluster, seed: int, side_by_side: int, watch_seconds: float, texts: int) -> None:
        self.kube, self.cluster = cluster.kube, cluster
        self.seed, self.texts = seed, texts
        self.minor = int(cluster.version.split(".")[1])
        self.side_by_side, self.watch_seconds = side_by_side, watch_seconds
        definitions = self.kube.request("GET", "/openapi/v2", timeout=60)["definitions"]
        self.maker = manifest_maker.Maker(seed, definitions)
        self.outcome = Outcome()
        self.watched: dict[str, Watched] = {}  # by namespace
        self._pool = ThreadPoolExecutor(8)
        self._judging: dict[str, Future[tuple[str, str]]] = {}  # by namespace
        self.slowest = 0.0  # seconds that a plain job has taken to train: what this machine adds to all of them

    def play(self, count: int) -> Outcome:
        number, told = 0, time.monotonic()
        applying: list[Future[Watched | None]] = []
        while number < count or self.watched or applying:
            while number < count and len(self.watched) + len(applying) < self.side_by_side:
                applying.append(self._pool.submit(self._apply, self._make(number)))
                number += 1
            done = [one for one in applying if one.done()]
            applying = [one for one in applying if not one.done()]
            for future in done:
                if (watched := future.result()) is not None:
                    self.watched[watched.made.namespace] = watched
            self._look()
            self._finish()
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                print(f"applied {number} of {count}; {len(self.watched)} are watched", flush=True)
            time.sleep(POLL_SECONDS)
        self._pool.shutdown()
        return self.outcome

    def _make(self, number: int) -> Made:
        return manifest_texts.make(self.seed, number, self.minor) if number < self.texts else self.maker.make(number)

    def _apply(self, made: Made) -> Watched | None:
        kube, namespace = self.kube, made.namespace
        self.outcome.made[namespace] = made
        labels = {"labels": dict(made.labels)}
        self._create("/api/v1/namespaces", {"metadata": {"name": namespace, **labels}})
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        wait_for(lambda: kube.get(account), f"{namespace} has its service account", 120, 0.1)
        for path, body in made.neighbours:
            self._create(path, body)
            if path.endswith("resourcequotas"):  # it counts from when its status is there
                one = f"{path}/{body['metadata']['name']}"
                wait_for(lambda one=one: (kube.get(one) or {}).get("status"), f"{one} counts", 60, 0.1)  # type: ignore[misc]
        try:
            job = kube.request("POST", f"{GROUP}/namespaces/{namespace}/{names.PLURAL}", made.body)
        except KubeError as error:
            self._note_refused(made, error)
            return None
        return Watched(made, job["metadata"]["name"], time.time())

    def _create(self, path: str, body: Object) -> None:
        """What a job finds there. On a busy machine the API server may be too late with its own quotas (500)."""

        def create() -> bool:
            try:
                self.kube.request("POST", path, body)
            except KubeError as error:
                if error.status != 500:
                    raise
                return False
            return True

        wait_for(create, f"{path} has {body['metadata']['name']}", 120, 1.0)

    def _note_refused(self, made: Made, error: KubeError) -> None:
        self.outcome.ends["refused"] += 1
        wrong = manifest_judge.judge_text(made, str(error))
        if error.status not in (400, 403, 409, 422) or wrong:
            self.outcome.violations.append(
                f"{made.namespace} {made.parts}: refused with {error.status}: {wrong or error}"
            )

    def _look(self) -> None:
        """At all jobs at once."""
        now = time.time()
        jobs = self.kube.request("GET", f"{GROUP}/{names.PLURAL}", timeout=60)["items"]
        found = {job["metadata"]["namespace"]: job for job in jobs}
        for namespace, watched in self.watched.items():
            job = found.get(namespace)
            if job is None:
                self._read_events(watched)
                continue
            watched.status = job.get("status") or {}
            watched.last = manifest_judge.find_state(watched.made, watched.status)
            watched.trained |= watched.last == TRAINS
            watched.said = str(manifest_judge.read_told(watched.status) or watched.said)
            if watched.last != SILENT and watched.answered is None:
                watched.answered = now
            if (not watched.made.parts or watched.made.has_to_train) and not watched.trained:
                self.slowest = min(MOST_SLACK_SECONDS, max(self.slowest, now - watched.began))

    def _read_events(self, watched: Watched) -> None:
        """What is left of a job that was deleted soon after its end, as it asks for."""
        if watched.last == SILENT and watched.made.is_deleted:
            events = self.kube.request("GET", f"/api/v1/namespaces/{watched.made.namespace}/events")["items"]
            watched.status = manifest_judge.recall(events)
            watched.last = manifest_judge.find_state(watched.made, watched.status)
            if watched.last != SILENT:
                watched.answered = time.time()

    def _finish(self) -> None:
        for namespace, watched in list(self.watched.items()):
            if (judging := self._judging.get(namespace)) is not None:
                if judging.done():
                    del self._judging[namespace]
                    self._conclude(watched, *judging.result())
                continue
            # One that said why says nothing for a moment where what it waited for has come, and its pods go on.
            is_settled = watched.last in (TRAINS, FOREIGN) or (watched.last == TOLD and not watched.made.has_to_train)
            is_due = time.time() - watched.began > max(watched.due, self.watch_seconds)
            if is_due and (is_settled or not self._is_early(watched)):
                # Beside this loop: to look at all jobs must not wait for a slow webhook that sees a pod made by hand.
                self._judging[namespace] = self._pool.submit(self._judge, replace(watched))

    def _conclude(self, watched: Watched, end: str, wrong: str) -> None:
        waited = time.time() - watched.began
        if wrong and end == TRAINS and waited < self.watch_seconds + self.slowest + RECOVER_SECONDS:
            watched.due = waited + RECHECK_SECONDS  # one of its pods may have just gone
            return
        self._note(watched, end, wrong)
        del self.watched[watched.made.namespace]
        self._pool.submit(self._remove, watched)

    def _is_early(self, watched: Watched) -> bool:
        """Whether a job may have waited for this machine until now: what it waits for has hardly begun."""
        now = time.time()
        if now - watched.began > self.watch_seconds + MOST_SLACK_SECONDS:
            return False
        if now - watched.began <= self.watch_seconds + self.slowest:
            return True
        first = min(self._list_pods(watched), key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)
        return first is not None and now - manifest_judge.find_last_step(first) <= self.watch_seconds

    def _judge(self, watched: Watched) -> tuple[str, str]:
        """How it ended, and what is wrong with that."""
        made = watched.made
        end = watched.last
        if watched.answered is not None and made.has_to_train and not watched.trained:
            wrong = "it has to train"
        elif watched.answered is not None and made.warned and not manifest_judge.is_warned(made, watched.status):
            wrong = f"it warns of none of {', '.join(made.warned)}"
        elif end == TRAINS:
            wrong = self._judge_training(watched)
        elif end == TOLD:
            wrong = manifest_judge.judge_words(made, watched.status) or self._judge_pods(watched)
        elif end == SILENT:
            wrong = manifest_judge.judge_silence(watched.answered is not None, watched.said, self.watch_seconds)
        else:
            wrong = ""
        return end, wrong

    def _note(self, watched: Watched, end: str, wrong: str) -> None:
        made, told = watched.made, manifest_judge.read_told(watched.status)
        self.outcome.ends[end] += 1
        self.outcome.reasons.update({reason for reason, _ in told} if end == TOLD else ())
        if wrong:
            conditions = [c for c in watched.status.get("conditions") or () if c.get("message")]
            text = "; ".join(f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in conditions)
            line = f"{', '.join(made.parts)}: {manifest_judge.shorten(wrong)}: {made.namespace}/{watched.name}"
            self.outcome.violations.append(f"{line} [{manifest_judge.shorten(text)}] {json.dumps(made.body['spec'])}")
            print("WRONG", self.outcome.violations[-1], flush=True)

    def _judge_pods(self, watched: Watched) -> str:
        """A pod may have gone between two looks: it is told of for a moment longer."""
        url = f"{GROUP}/namespaces/{watched.made.namespace}/{names.PLURAL}/{watched.name}"

        def find_gone() -> str:
            status = (self.kube.get(url) or {}).get("status") or {}
            return manifest_judge.find_gone(watched.name, status, self._list_pods(watched))

        until = time.monotonic() + RECHECK_SECONDS
        while (gone := find_gone()) and time.monotonic() < until:
            time.sleep(0.5)
        return f"it tells of {gone}, which is gone: {watched.said}" if gone else ""

    def _judge_training(self, watched: Watched) -> str:
        made, pods = watched.made, self._list_pods(watched)
        live = manifest_pods.list_live(pods)
        lost = list(itertools.chain(*(self._find_lost(made, pod) for pod in live[:1])))
        return manifest_judge.judge_training(made, watched.status, pods, lost)

    def _find_lost(self, made: Made, pod: Mapping[str, Any]) -> Iterator[str]:
        """What this pod lacks that one of the same template has which is made by hand."""
        template = made.body["spec"].get("template")
        if template is None:
            return
        path = f"/api/v1/namespaces/{made.namespace}/pods?dryRun=All"
        try:
            by_hand = self.kube.request("POST", path, manifest_pods.build_by_hand(template))
        except KubeError as error:
            if "exceeded quota" not in str(error):  # the job's own pods have used it up
                yield f"the API server refuses its template: {error}"
            return
        self.outcome.compared += 1
        yield from manifest_pods.find_lost(template, by_hand, pod)

    def _list_pods(self, watched: Watched) -> list[Mapping[str, Any]]:
        found = self.kube.request("GET", f"/api/v1/namespaces/{watched.made.namespace}/pods")["items"]
        return [pod for pod in found if pod["metadata"].get("labels", {}).get(names.LABEL_APP) == names.LABEL_APP_VALUE]

    def _remove(self, watched: Watched) -> None:
        """The job and its pods; the namespace stays, since its deletion costs more than all the rest."""
        pods = f"/api/v1/namespaces/{watched.made.namespace}/pods"
        with contextlib.suppress(KubeError, OSError):
            path = f"{GROUP}/namespaces/{watched.made.namespace}/{names.PLURAL}/{watched.name}"
            self.kube.request("DELETE", path)
            self.kube.request("DELETE", pods, {"gracePeriodSeconds": 0})


@dataclass
class Requests:
    """When the operator asked for something, by namespace."""

    asked: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    refused: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # writes
    pods: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # that were made
    what: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


def read_requests(cluster: Cluster) -> Requests:
    """The operator's requests of each job, from the audit log."""
    found = Requests()
    with (cluster.directory / "audit.log").open() as file:
        for line in file:
            event = json.loads(line)
            target = event.get("objectRef") or {}
            namespace = target.get("namespace") or ""
            if not AGENT.match(event.get("userAgent", "")) or target.get("resource") in _OWN:
                continue
            at, code = _seconds(event["requestReceivedTimestamp"]), event["responseStatus"].get("code", 0)
            found.asked[namespace].append(at)
            made = event["verb"] == "create" and target.get("resource") == "pods"
            found.what[namespace][f"{event['verb']} {target.get('resource')} {code}"] += 1
            if event["verb"] not in READS and code >= 400 and code not in (404, 409):
                found.refused[namespace].append(at)
            elif made and code < 300:
                found.pods[namespace].append(at)
    return found


def _judge_requests(cluster: Cluster, outcome: Outcome) -> dict[str, Any]:
    """Counts the operator's requests of each job."""
    requests = read_requests(cluster)
    found = {}
    limits: tuple[tuple[str, dict[str, list[float]], Callable[[Made], int]], ...] = (
        ("requests", requests.asked, lambda _: manifest_judge.MOST_REQUESTS),
        ("refused", requests.refused, lambda _: manifest_judge.MOST_REFUSED),
        ("pods", requests.pods, manifest_judge.most_pods),
    )
    for name, times, most in limits:
        counts = {ns: manifest_judge.find_most(ats) for ns, ats in times.items() if re.fullmatch(r"m\d+-\d+", ns)}
        found[f"most {name} in a minute"] = max(counts.values(), default=0)
        loops = sorted(((n, ns) for ns, n in counts.items() if n > most(outcome.made[ns])), reverse=True)
        outcome.violations += [
            f"{ns} {outcome.made[ns].parts}: {n} {name} in a minute: {requests.what[ns].most_common(8)}"
            for n, ns in loops
        ]
    return found


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
