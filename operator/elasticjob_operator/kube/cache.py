"""The operator's cache of the cluster: small snapshots by job, updated by watches and by the operator's own writes.

An own write is entered as soon as the API server has confirmed it, and older versions from a watch are ignored. So a
pass never acts on a state older than its own last action.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from elasticjob_operator import turn
from elasticjob_operator.api import bounds, names
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.kube.job_room import JobRoom
from elasticjob_operator.kube.lists import Lists, is_older
from elasticjob_operator.kube.status_room import StatusRoom
from elasticjob_operator.model import observe, ownership, reading
from elasticjob_operator.model.child_objects import ChildObject, observe_child, why_no_child
from elasticjob_operator.model.observe import Job, Node, Pod, Stranger
from elasticjob_operator.model.ownership import POD, Dependent, UnownedObject
from elasticjob_operator.recent import Recent

__all__ = ["Cache", "UnownedObject", "is_older"]

Raw = Mapping[str, Any]

LEAST_PODS = 2 * bounds.Limits().replicas  # of a job are seen, also of one that runs where the limit was lowered
LONGEST_MEMORY = 10_000  # UIDs of deleted pods and jobs, and of unowned objects


def _has_unseen_gate(known: observe.Pod, raw: Raw) -> bool:
    """Whether the answer to the write of this pod did not show that it is kept from the scheduler.

    It shows the metadata only. Others get a further version from the scheduler; nobody writes to a pod with a gate.
    """
    return not known.waiting and bool((raw.get("spec") or {}).get("schedulingGates"))


def _waits(job: Job) -> bool:
    """Whether something of its spec is read again when there is room."""
    return job.no_room is not None or job.late is not None


class Cache:
    """Jobs, pods, nodes and child objects. `wake` is called with the key of every job that a change affects."""

    def __init__(
        self,
        wake: Callable[[JobKey], None],
        on_unowned: Callable[[UnownedObject], None] = lambda unowned: None,
        limits: bounds.Limits = bounds.Limits(),
        find_share: Callable[[Raw], observe.PoolShare] = lambda node: observe.PoolShare(),
        find_devices: Callable[[Raw], observe.Devices] = lambda pod_spec: (),
        wake_many: Callable[[Collection[JobKey]], None] | None = None,
    ) -> None:
        """`find_share`: what a node gives to its pool. `find_devices`: what a pod with this spec holds of it.

        `wake_many`, if there is one, is called with all jobs that one change affects.
        """
        self._wake, self._wake_many = wake, wake_many or self._wake_each
        self._on_unowned = on_unowned
        self._limits, self._find_share, self._find_devices = limits, find_share, find_devices
        self.jobs: dict[JobKey, tuple[Job, str]] = {}  # with the resourceVersion
        self.jobs_known = False  # all of them were read once
        self._room, self._statuses = JobRoom(), StatusRoom()
        self.lists = Lists()
        self._pods: dict[JobKey, dict[str, Pod]] = {}  # by UID
        self._job_of: dict[str, JobKey] = {}
        self._counts: Counter[str] = Counter()  # of pods that have not ended, by namespace
        self._strangers: dict[str, Stranger] = {}  # by UID
        # UIDs of pods that are gone, and the version at which they went: a late event must not restore them.
        self._gone: Recent[str, str] = Recent(LONGEST_MEMORY)
        # UIDs of jobs that were deleted, and the version at which they were: the answer to a write may come later.
        self._ended: Recent[JobKey, tuple[str, str]] = Recent(LONGEST_MEMORY)
        self.nodes: dict[str, Node] = {}
        self.nodes_known = False
        self._children: dict[JobKey, dict[tuple[str, str], ChildObject]] = {}
        self._place_of_child: dict[str, tuple[JobKey, tuple[str, str]]] = {}  # by UID
        self._gone_children: Recent[str, str] = Recent(LONGEST_MEMORY)  # as `_ended`: by UID, the version
        self._jobs_on_node: dict[str, Counter[JobKey]] = {}  # with the number of pods
        self._unowned: Recent[str, None] = Recent(LONGEST_MEMORY)  # UIDs that were reported

    # Jobs.

    def put_job(self, raw: Raw, since: int | None = None) -> None:
        """Enter a job. `since`: of an answer, what `lists.count` had said when it was asked for."""
        metadata = raw["metadata"]
        key = (metadata["namespace"], metadata["name"])
        version = str(metadata.get("resourceVersion", ""))
        known = self.jobs.get(key)
        before = known[0] if known is not None and known[0].uid == metadata["uid"] else None
        if known is not None and is_older(version, known[1]):
            return  # that may be a predecessor with the same name
        if before is None and self.lists.has_missed(names.KIND, key[0], version, since):
            return
        if before is not None and known is not None and known[1] == version and not self.may_read_again(before):
            return
        ended = self._ended.get(key)
        if ended is not None and ended[0] == metadata["uid"]:
            if version == ended[1] or is_older(version, ended[1]):
                return
            del self._ended[key]  # seen again: it is not certain that it was deleted
        seen = observe.observe_job(raw, self._limits, before)
        if known is not None and before is None:
            self._leave_rooms(key)  # of a predecessor
        job = self._room.let_in(seen, before, is_first_list=not self.jobs_known)
        is_known = before is not None and known is not None and known[1] == version and _waits(job)
        # At the start, pods may be read after their jobs: until `know_jobs`, the status says which ones have some.
        has_pods = key in self._pods or (not self.jobs_known and job.status.replicas > 0)
        self.jobs[key] = (self._statuses.let_in(job, has_pods=has_pods), version)
        if not is_known:
            self._wake(key)

    def complete(self, raw: Raw) -> tuple[Job, str] | None:
        """The job that was just entered as this, with all of its status; None if it has changed since."""
        metadata = raw["metadata"]
        known = self.jobs.get((metadata["namespace"], metadata["name"]))
        is_same = known is not None and (known[0].uid, known[1]) == (metadata["uid"], str(metadata["resourceVersion"]))
        if known is None or not is_same or "status" not in raw:  # of an object of too many values, there is none
            return None
        said, key = reading.read_status(raw.get("status")), known[0].key
        whole = replace(known[0], status=said.status, status_raw=said.raw, is_short=False), known[1]
        if key in self._pods:  # whose changes may be many
            self.jobs[key] = whole
        return whole

    def _leave_rooms(self, key: JobKey) -> None:
        self._room.leave(key)
        self._statuses.leave(key)

    def end_job(self, key: JobKey, uid: str, version: str) -> None:
        """The API server reports that this very job was deleted, so what it owned has no owner any more."""
        self.drop_job(key, uid)
        self._ended[key] = uid, version
        self._wake(key)

    def drop_job(self, key: JobKey, uid: str) -> None:
        """The job was not found. That alone does not prove its deletion: its kind may not be served for a moment."""
        known = self.jobs.get(key)
        if known is not None and known[0].uid == uid:
            del self.jobs[key]
            self._leave_rooms(key)
            self._wake(key)

    def may_read_again(self, job: Job) -> bool:
        """Whether the job, or a change of it, was not kept for want of room, and there is room now."""
        return self.jobs_known and _waits(job) and self._room.has_room(job)

    def apply_job(self, kind: str | None, raw: Raw) -> None:
        """Apply a watch event from kopf; `kind` is None for the initial listing."""
        metadata = raw["metadata"]
        if kind == "DELETED":
            version = str(metadata.get("resourceVersion", ""))
            self.end_job((metadata["namespace"], metadata["name"]), metadata["uid"], version)
        else:
            self.put_job(raw)

    # Pods.

    def put_pod(self, raw: Raw, since: int | None = None) -> None:
        """Enter a pod. `since`: see `put_job`."""
        metadata = raw["metadata"]
        uid = metadata["uid"]
        version = str(metadata.get("resourceVersion", ""))
        if self._locate(uid) is None and self.lists.has_missed("Pod", metadata["namespace"], version, since):
            self._wake((metadata["namespace"], ownership.owner_of(metadata)[0]))  # it has to be made again
            return
        if uid in self._gone:
            if not is_older(self._gone[uid], version):
                return
            del self._gone[uid]  # it had only lost the label, without which it is not watched
        before = self._job_of.get(uid)
        known = self._pods[before][uid] if before is not None else None
        # Checked first: the watch repeats every own write, and to observe a pod is most of the work.
        if known is not None and is_older(version, known.resource_version):
            return
        if known is not None and known.resource_version == version and not _has_unseen_gate(known, raw):
            return
        why = ownership.why_no_worker(metadata) or self._why_too_many(metadata)
        if why:
            self._put_unowned("Pod", metadata, why)
        devices = self._find_devices(raw.get("spec") or {})
        stranger = observe.observe_stranger(raw, devices) if why else None
        if stranger is None:
            self._strangers.pop(uid, None)
        else:
            self._strangers[uid] = stranger
        pod = None if why else observe.observe_pod(raw, devices)
        key = (metadata["namespace"], pod.job) if pod is not None else None
        if before != key:
            self._remove_pod(uid)
        if pod is None or key is None:
            return
        same = known if before == key else None
        self._move(key, same.node if same is not None else "", pod.node)
        self._count(key[0], same, pod)
        if key not in self._pods:
            self._statuses.leave(key)
        self._pods.setdefault(key, {})[uid] = pod
        self._job_of[uid] = key
        self._wake(key)

    def _why_too_many(self, metadata: Raw) -> str:
        """Why there is no room for this worker; "" if there is. The operator makes no more than a job has twice."""
        key = (metadata["namespace"], ownership.owner_of(metadata)[0])
        known, most = self._pods.get(key, {}), max(LEAST_PODS, 2 * self._limits.replicas)
        return f"its job has {most} pods already" if len(known) >= most and metadata["uid"] not in known else ""

    def drop_pod(self, uid: str, version: str = "") -> None:
        """The pod is gone. `version`: when the watch or a list was told so, which may mean that it lost the label."""
        self._gone[uid] = version
        self._strangers.pop(uid, None)
        self._remove_pod(uid)

    def _remove_pod(self, uid: str) -> None:
        key = self._job_of.pop(uid, None)
        if key is None:
            return
        pod = self._pods[key].pop(uid)
        self._move(key, pod.node, "")
        self._count(key[0], pod, None)
        if not self._pods[key]:
            del self._pods[key]
            self._shorten(key)
        self._wake(key)

    def _shorten(self, key: JobKey) -> None:
        """The job has no pods: its status is kept as far as there is room."""
        if key in self.jobs and not self.jobs[key][0].is_short:
            job, version = self.jobs[key]
            self.jobs[key] = (self._statuses.let_in(job, has_pods=False), version)

    def _count(self, namespace: str, before: Pod | None, after: Pod | None) -> None:
        has_come, had_come = after is not None and not after.terminal, before is not None and not before.terminal
        self._counts[namespace] += has_come - had_come
        if not self._counts[namespace]:
            del self._counts[namespace]

    def _move(self, key: JobKey, before: str, after: str) -> None:
        """Record that one pod of this job is on another node; "" is none."""
        if before == after:
            return
        if after:
            self._jobs_on_node.setdefault(after, Counter())[key] += 1
        if before:
            jobs = self._jobs_on_node[before]
            jobs[key] -= 1
            if not jobs[key]:
                del jobs[key]
            if not jobs:
                del self._jobs_on_node[before]

    def apply_pod(self, kind: str, raw: Raw) -> None:
        if kind == "DELETED":
            self.drop_pod(raw["metadata"]["uid"], str(raw["metadata"].get("resourceVersion", "")))
        else:
            self.put_pod(raw)

    async def replace_pods(self, uids: list[str], version: str, namespace: str = "") -> None:
        """The UIDs of all pods at one version, optionally of one namespace; each was entered already."""
        self.lists.end("Pod", namespace, version)
        listed = {uid async for uid in turn.one_by_one(uids)}
        async for uid in turn.one_by_one([*self._job_of, *self._strangers]):
            found = self._locate(uid) if uid not in listed else None
            # A pod that we created after the list was taken is not missing, only newer.
            if found is not None and namespace in ("", found[0]) and not is_older(version, found[1]):
                self.drop_pod(uid, version)

    def _locate(self, uid: str) -> tuple[str, str] | None:
        """The namespace and the version of this pod, a worker or not; None if it is gone."""
        key = self._job_of.get(uid)
        if key is not None:
            return key[0], self._pods[key][uid].resource_version
        stranger = self._strangers.get(uid)
        return None if stranger is None else (stranger.namespace, stranger.resource_version)

    def pods(self, key: JobKey) -> tuple[Pod, ...]:
        return tuple(self._pods.get(key, {}).values())

    def keys_of_pods(self) -> tuple[JobKey, ...]:
        """The jobs that have pods, also those that are gone."""
        return tuple(self._pods)

    def strangers(self) -> tuple[Stranger, ...]:
        """Pods on nodes that have the operator's label and are no workers."""
        return tuple(self._strangers.values())

    def count_pods(self) -> Mapping[str, int]:
        """How many workers each namespace has, without those that have ended."""
        return self._counts

    def find_pod(self, namespace: str, name: str, uid: str) -> str | None:
        """The job of this worker pod; None if it is not, or not yet, known as a worker of an existing job."""
        key = self._job_of.get(uid)
        if key is None or key[0] != namespace:
            return None
        pod, job = self._pods[key][uid], self.jobs.get(key)
        return key[1] if pod.name == name and job is not None and job[0].uid == pod.job_uid else None

    # Unowned objects: they have the operator's label, but it did not create them.

    def _put_unowned(self, kind: str, metadata: Raw, why: str) -> None:
        """Report an unowned object once; it is not touched."""
        uid = metadata["uid"]
        if uid in self._unowned:
            return
        self._unowned[uid] = None
        job = str((metadata.get("labels") or {}).get(names.LABEL_JOB, ""))
        self._on_unowned(UnownedObject(kind, metadata["namespace"], metadata["name"], job, why))

    # Nodes.

    def put_node(self, raw: Raw) -> None:
        node = observe.observe_node(raw, self._find_share(raw))
        if self.nodes.get(node.name) != node:
            self.nodes[node.name] = node
            self._wake_node(node.name)

    def apply_node(self, kind: str, raw: Raw) -> None:
        name = raw["metadata"]["name"]
        if kind == "DELETED":
            self.nodes.pop(name, None)
            self._wake_node(name)
        else:
            self.put_node(raw)

    async def replace_nodes(self, there: list[str]) -> None:
        """The names of all nodes."""
        self.nodes_known = True
        listed = {*there}
        async for name in turn.one_by_one([n for n in self.nodes if n not in listed]):
            self.nodes.pop(name)
            self._wake_node(name)

    def _wake_node(self, name: str) -> None:
        self._wake_many(tuple(self._jobs_on_node.get(name, ())))

    def _wake_each(self, keys: Collection[JobKey]) -> None:
        for key in keys:
            self._wake(key)

    def nodes_of(self, pods: tuple[Pod, ...]) -> Mapping[str, Node]:
        """The nodes of these pods. Without permission to read nodes, all count as Ready."""
        if self.nodes_known:
            return {p.node: self.nodes[p.node] for p in pods if p.node in self.nodes}
        return {p.node: Node(p.node) for p in pods if p.node}

    # Children.

    def put_child(self, kind: str, raw: Raw, *, is_sound: bool = False, since: int | None = None) -> None:
        """Enter a child object. `is_sound`: the API server has just confirmed that it matches the wanted state.

        `since`: see `put_job`.
        """
        metadata = raw["metadata"]
        why = why_no_child(kind, metadata)
        if why:
            self._put_unowned(kind, metadata, why)
            if (known_as := self._place_of_child.get(metadata["uid"])) is not None:  # it was a child before
                self.drop_child(kind, *known_as[0], known_as[1][1])
            return
        job, owner = ownership.owner_of(metadata)
        key, place = (metadata["namespace"], job), (kind, metadata["name"])
        if self.jobs_known and self._is_unknown(key):
            return  # anybody may name an owner; if the job is only not known yet, its first pass finds what is there
        known = self._children.get(key, {}).get(place)
        made = observe_child(metadata, known, is_sound=is_sound)
        if is_older(made.version, self._gone_children.get(made.uid, "")):
            return
        is_known = known is not None and known.uid == made.uid
        if not is_known and self.lists.has_missed(kind, key[0], made.version, since):
            self._wake(key)  # it has to be made again
            return
        if is_known and known is not None and is_older(made.version, known.version):
            return
        self._forget_child(key, place)
        self._children.setdefault(key, {})[place] = made
        self._place_of_child[made.uid] = (key, place)
        if known is None or (known.owner, known.digest) != (owner, made.digest):
            self._wake(key)

    def drop_child(self, kind: str, namespace: str, job: str, name: str) -> None:
        key = (namespace, job)
        if self._forget_child(key, (kind, name)):
            self._wake(key)

    def _forget_child(self, key: JobKey, place: tuple[str, str]) -> bool:
        known = self._children.get(key, {})
        child = known.pop(place, None)
        if child is not None:
            self._place_of_child.pop(child.uid, None)
        if not known:
            self._children.pop(key, None)
        return child is not None

    def _is_unknown(self, key: JobKey) -> bool:
        return key not in self.jobs and key not in self._ended

    async def know_jobs(self) -> None:
        """All jobs were read, and all pods and children: those of no job at all are forgotten."""
        self.jobs_known = True
        said = [key for key, (job, _) in self.jobs.items() if job.status.replicas > 0 and key not in self._pods]
        async for key in turn.one_by_one(said):
            if key not in self._pods:
                self._shorten(key)
        async for key in turn.one_by_one(list(self._children)):
            if self._is_unknown(key):
                self.forget(key)

    def apply_child(self, kind: str, event: str, raw: Raw, *, is_sound: bool = False) -> None:
        metadata = raw["metadata"]
        if event == "DELETED":
            self._gone_children[metadata["uid"]] = str(metadata.get("resourceVersion", ""))
            namespace, name = metadata["namespace"], metadata["name"]
            owner = ownership.owner_of(metadata)[0]  # unknown of one that could not be read
            key, place = self._place_of_child.get(metadata["uid"], ((namespace, owner), (kind, name)))
            self.drop_child(kind, namespace, owner or (key[1] if place == (kind, name) else ""), name)
        else:
            self.put_child(kind, raw, is_sound=is_sound)

    async def replace_children(self, kind: str, uids: list[str], version: str, namespace: str = "") -> None:
        """The UIDs of all objects of this kind."""
        self.lists.end(kind, namespace, version)
        listed = {uid async for uid in turn.one_by_one(uids)}
        async for key in turn.one_by_one([key for key in self._children if namespace in ("", key[0])]):
            for (of_kind, name), child in list(self._children.get(key, {}).items()):
                if of_kind == kind and child.uid not in listed and not is_older(version, child.version):
                    self._gone_children[child.uid] = version
                    self.drop_child(kind, *key, name)

    def children(self, job: Job) -> frozenset[tuple[str, str, str]]:
        """(kind, name, digest) of the children of this job, not of a predecessor; "" if someone else
        changed the child.
        """
        known = self._children.get(job.key, {})
        return frozenset((kind, name, child.digest) for (kind, name), child in known.items() if child.owner == job.uid)

    def child_uid(self, job: Job, kind: str, name: str) -> str:
        """The UID of a child of this job; "" if it is unknown."""
        known = self._children.get(job.key, {}).get((kind, name))
        return known.uid if known is not None and known.owner == job.uid else ""

    # What deleted jobs have left.

    def left_over(self, key: JobKey) -> tuple[Dependent, ...]:
        """What only the deleted job of this name owned; nothing if no deletion was reported."""
        uid, _ = self._ended.get(key, ("", ""))
        if not uid:
            return ()
        pods = (p for p in self.pods(key) if p.job_uid == uid and not p.is_shared)
        found = [Dependent(POD, p.name, p.uid, p.resource_version, p.deleting is not None) for p in pods]
        for (kind, name), child in self._children.get(key, {}).items():
            if child.owner == uid and child.uid and not child.is_shared:
                found.append(Dependent(kind, name, child.uid, child.version))
        return tuple(found)

    def leave(self, key: JobKey) -> None:
        """Leave what the deleted job owned to the garbage collector."""
        self._ended.pop(key, None)

    def forget(self, key: JobKey) -> None:
        for place in list(self._children.get(key, ())):
            self._forget_child(key, place)
