"""Two replicas of the real operator behind one address, ways to move leadership, and a check of their writes.

The check reads the API server's audit log: which replica wrote what, and who held the Lease at that time. A replica is
identified by its user agent, which is new at every start, so a restarted replica is another one.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import socket
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elasticjob_devcluster import Cluster
from operator_fixture import MERGE, OperatorProcess, wait_for

LEASE = "elasticjob-operator"
READS = ("get", "list", "watch")
SETTLING_SECONDS = 0.5  # what was on its way when a replica was told that the Lease is another's
AGENT = re.compile(r"elasticjob-operator/\S+ \((?P<identity>[^)]+)\)")


class Service:
    """One port for several backends: each connection goes to a random one, or to the next if nothing listens there."""

    def __init__(self, backends: list[int]) -> None:
        self._backends = backends
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        for port in random.sample(self._backends, len(self._backends)):
            with contextlib.suppress(OSError):
                far = socket.create_connection(("127.0.0.1", port), timeout=5)
                far.settimeout(None)
                self._sockets += [near, far]
                threading.Thread(target=self._copy, args=(near, far), daemon=True).start()
                self._copy(far, near)
                return
        near.close()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        for one in self._sockets:
            one.close()


class Replicas:
    """Two operators with one Lease, called `one` and `two`, with a certificate that they created."""

    def __init__(
        self, cluster: Cluster, directory: Path, namespace: str, *flags: str, lease_seconds: float = 3.0
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.lease_seconds = lease_seconds
        self.lease_path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE}"
        self.all: dict[str, OperatorProcess] = {}
        for name in ("one", "two"):
            place = directory / name
            place.mkdir()
            common = ("--operator-namespace", namespace, "--stable-seconds", "1", "--leader-election")
            own = ("--lease-seconds", str(lease_seconds), "--identity", name, "--tls-secret", "hub-tls")
            self.all[name] = OperatorProcess(cluster, place, *common, *own, *flags)
        self._service = Service([operator.hub_port for operator in self.all.values()])
        for operator in self.all.values():
            operator.flags += ("--hub-url", f"wss://127.0.0.1:{self._service.port}")

    def start(self) -> None:
        for operator in self.all.values():
            operator.start()

    def stop(self) -> None:
        for operator in self.all.values():
            if operator.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    operator.process.send_signal(signal.SIGCONT)
            operator.stop()
        self._service.close()

    def revive(self) -> list[str]:
        """Restart ended replicas, like a kubelet; return their names."""
        ended = [n for n, o in self.all.items() if o.process is None or o.process.poll() is not None]
        for name in ended:
            self.all[name].start()
        return ended

    def holder(self) -> str:
        """The identity in the Lease: `one_1a2b3c4d`; empty if there is no holder."""
        lease = self.cluster.kube.get(self.lease_path)
        return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")

    def await_leader(self, other_than: str = "", timeout: float = 60.0) -> str:
        """The identity of a replica that leads and is not this one."""

        def look() -> str:
            held = self.holder()
            return held if held != other_than and held.partition("_")[0] in self.all else ""

        return wait_for(look, f"a replica other than {other_than!r} leads", timeout)

    def move(self, how: str) -> str:
        """Take leadership from the current leader; return the identity of the next one.

        `term` and `kill` end the leader, `pause` stops it beyond its Lease and then continues it, `steal` writes
        another name to the Lease. Ended replicas are restarted once the other one leads.
        """
        self.revive()  # on a busy machine, a replica may have lost the Lease and ended
        before = self.await_leader()
        leader = self.all[before.partition("_")[0]]
        if how in ("term", "kill"):
            leader.kill(signal.SIGTERM if how == "term" else signal.SIGKILL)
        elif how == "pause":
            assert leader.process is not None
            leader.process.send_signal(signal.SIGSTOP)
        elif how == "steal":
            self.steal("nobody")
        else:
            raise ValueError(how)
        after = self.await_leader(before)
        if how == "pause":
            assert leader.process is not None
            leader.process.send_signal(signal.SIGCONT)
        if how in ("pause", "steal"):
            assert leader.process is not None
            leader.process.wait(20)  # it ends by itself
        self.revive()
        return after

    def steal(self, name: str) -> None:
        """Write this name to the Lease, whoever holds it."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": name, "acquireTime": now, "renewTime": now}
        self.cluster.kube.request("PATCH", self.lease_path, {"spec": spec}, content_type=MERGE)


@dataclass(frozen=True, slots=True)
class Audited:
    """One request in the API server's audit log; times in seconds since 1970."""

    replica: str  # the identity of the replica that asked; empty: somebody else
    verb: str
    resource: str  # with the subresource: elasticjobs/status
    namespace: str
    name: str
    received: float
    done: float
    code: int
    holder: str | None  # of a Lease that was written: whose it is now

    def __str__(self) -> str:
        moment = datetime.fromtimestamp(self.received, UTC).strftime("%H:%M:%S.%f")
        return f"{moment} {self.replica}: {self.verb} {self.resource} {self.namespace}/{self.name} ({self.code})"


class AuditLog:
    """The audit log of a cluster, read from where the last read ended."""

    def __init__(self, cluster: Cluster) -> None:
        self._path = cluster.directory / "audit.log"
        self._offset = 0

    def read(self) -> list[Audited]:
        """What was added since the last call, in the order in which the requests ended."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, _, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + 1 if whole else 0
        return [found for line in whole.split(b"\n") if line and (found := parse(json.loads(line)))]


def parse(event: dict[str, Any]) -> Audited | None:
    """None where it is about no resource, or tells of a watch that goes on."""
    target = event.get("objectRef")
    if target is None or event["stage"] != "ResponseComplete":
        return None
    agent = AGENT.match(event.get("userAgent", ""))
    resource = "/".join(part for part in (target.get("resource", ""), target.get("subresource", "")) if part)
    written = resource == "leases" and event["verb"] not in READS
    spec = (event.get("responseObject") or {}).get("spec") or {}
    return Audited(
        replica=agent["identity"] if agent else "",
        verb=event["verb"],
        resource=resource,
        namespace=target.get("namespace", ""),
        name=target.get("name", "") or (event.get("responseObject") or {}).get("metadata", {}).get("name", ""),
        received=_seconds(event["requestReceivedTimestamp"]),
        done=_seconds(event["stageTimestamp"]),
        code=(event.get("responseStatus") or {}).get("code", 0),
        holder=str(spec.get("holderIdentity") or "") if written else None,
    )


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


@dataclass(frozen=True, slots=True)
class Tenure:
    """The time in which a replica held the Lease, in seconds since 1970."""

    replica: str
    start: float
    end: float


def find_tenures(requests: Iterable[Audited], namespace: str, name: str = LEASE) -> list[Tenure]:
    """Who held the Lease when.

    A tenure ends when another replica gets the Lease or the holder releases it. If another client writes the Lease,
    which the holder cannot know, it ends when the holder's next request is rejected.
    """
    mine = [r for r in requests if r.resource == "leases" and (r.namespace, r.name) == (namespace, name)]
    tenures: list[Tenure] = []
    holder, since, stolen = "", 0.0, False
    for request in sorted(mine, key=lambda r: r.received):
        if request.holder is None:
            continue
        if request.code >= 400:
            if stolen and request.replica == holder:
                tenures.append(Tenure(holder, since, request.done + SETTLING_SECONDS))
                holder, stolen = "", False
            continue
        if request.holder == holder:
            continue
        if holder and not request.replica:
            stolen = True
            continue
        if holder:
            tenures.append(Tenure(holder, since, request.received))
        holder, since, stolen = request.holder, request.received, False
    return [*tenures, Tenure(holder, since, float("inf"))] if holder else tenures


def find_writes_without_lease(requests: Sequence[Audited], namespace: str, name: str = LEASE) -> list[Audited]:
    """Writes, including rejected ones, of replicas that did not hold the Lease at that time.

    The Lease itself may be written by all, and token reviews are not writes.
    """
    tenures = find_tenures(requests, namespace, name)
    found = []
    for request in requests:
        if not request.replica or request.verb in READS or request.resource in ("leases", "tokenreviews"):
            continue
        held = [t for t in tenures if t.replica == request.replica and t.start <= request.received <= t.end]
        if not held:
            found.append(request)
    return found
