"""Nodes that run nothing: they say of pods what a kubelet would say, and their agents talk to the real hub.

All nodes, containers and agents are tasks of one thread, so that thousands of pods cost a few seconds of CPU. What a
container does is known by its command: one with `torchrun` is an agent, `sleep` goes on, `true` and `false` end, and
`fallocate` fills the node's disk.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from elasticjob_devcluster import Cluster, NodeSpec
from elasticjob_devcluster.node import registration, status
from elasticjob_devcluster.node.client import STRATEGIC, Api, ApiError
from elasticjob_devcluster.node.context import Settings
from elasticjob_devcluster.node.status import ContainerState, Ended, Running, Waiting
from elasticjob_operator.api import names

Raw = Mapping[str, Any]

REFUSES: Final = "chaos/refuses"  # label of a node, with the reason for which it refuses all pods
HERE: Final = "here/"  # what begins the name of an image that can be pulled
PRIVATE: Final = "private/"  # the same with one of the pod's pull secrets
NO_TEXT: Final = "here-bytes"  # a Secret whose value is no text
RETRY_SECONDS: Final = 1.0  # for what is missing
RESTART_SECONDS: Final = 5.0  # before a container is started again; doubled each time
AGENT_SECONDS: Final = 1.0
# Until a disk is full. A pod that lives half as long again, and a second more, proves that the node is well: on a busy
# machine the next one may live that much longer by chance.
FILL_SECONDS: Final = 4.0
CLOSING_SECONDS: Final = 0.3  # aiohttp closes connections with TLS in the background
TROUBLE: Final = (ApiError, aiohttp.ClientError, TimeoutError, OSError)


PROGRAMS: Final = frozenset(
    {"accelerate", "bash", "conda", "env", "fallocate", "false", "install", "mpirun", "numactl", "python", "sh",
     "sleep", "torchrun", "true", "uv"}
)  # fmt: skip


def find_program(container: Raw, *, is_init: bool) -> str:
    """What this container does: torchrun, sleep, true or false; "" if its image has no such program."""
    command, args = container.get("command") or (), container.get("args") or ()
    words = [str(word) for word in (*command, *args)]
    first, line = Path(words[0]).name if words else "", " ".join(words)
    if command and first not in PROGRAMS:
        return ""
    if first == "fallocate":
        return first
    if first == "install":  # of the runtime
        return "true"
    if "torchrun" in line:
        return "torchrun"
    if first in ("sh", "bash"):
        return "false" if "exit 1" in line else "true" if is_init else "sleep"
    return first if first in ("true", "false") else "sleep"


def is_restarted(container: Raw, ended: Ended) -> bool:
    """Whether the kubelet starts this container again in its pod, by a policy or rules of its own."""
    for rule in container.get("restartPolicyRules") or ():
        codes = rule["exitCodes"]
        if (ended.exit_code in codes["values"]) is (codes["operator"] == "In"):
            return True
    return status.should_restart(container.get("restartPolicy") or "Never", ended)


class Refused(Exception):  # noqa: N818 - says what happened
    """A container cannot be made yet: the reason of its state, and the message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class LightNodes:
    """A thread with all nodes; `wrong` is what went wrong in it."""

    def __init__(self, cluster: Cluster, specs: Sequence[NodeSpec]) -> None:
        self._cluster, self._specs = cluster, specs
        self.wrong: list[str] = []
        self._pods: dict[str, LightPod] = {}
        self._attached: dict[tuple[str, str], tuple[str, str]] = {}  # (namespace, disk): (node, pod)
        self._addresses = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @contextlib.contextmanager
    def running(self) -> Iterator[LightNodes]:
        self._thread.start()
        main = asyncio.run_coroutine_threadsafe(self._run(), self._loop)
        try:
            yield self
        finally:
            main.cancel()
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    async def _end(self) -> None:
        """Pods first, which wait for what they have started; then the rest."""
        await _cancel([pod.task for pod in self._pods.values()])
        await _cancel([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])
        await self.api.close()
        await asyncio.sleep(CLOSING_SECONDS)

    async def _run(self) -> None:
        pki = self._cluster.directory / "pki"
        pair = _write_identity(self._cluster)
        self.api = Api(self._cluster.server, pki / "ca.crt", *pair)
        for spec in self._specs:
            await registration.register(self.api, self._settings(spec))
        while True:
            try:
                await self._follow()
            except TROUBLE:
                await asyncio.sleep(0.2)
            except asyncio.CancelledError:
                raise
            except Exception:
                self.wrong.append(traceback.format_exc())

    def _settings(self, spec: NodeSpec) -> Settings:
        return Settings(
            name=spec.name, address="127.0.0.1", port=1, server=self._cluster.server, api_host="127.0.0.1", api_port=1,
            pki="", cluster=self._cluster.id, path="", version=self._cluster.version, capacity=spec.capacity(),
            labels=dict(spec.labels), taints=tuple(dict(t) for t in spec.taints),
        )  # fmt: skip

    async def _follow(self) -> None:
        pods = await self.api.request("GET", "/api/v1/pods", timeout=60)
        for pod in pods["items"]:
            self._take("MODIFIED", pod)
        version = pods["metadata"]["resourceVersion"]
        query = f"watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=50"
        async with contextlib.aclosing(self.api.watch(f"/api/v1/pods?{query}")) as events:
            async for event in events:
                if event["type"] == "ERROR":
                    return
                self._take(event["type"], event["object"])

    def _take(self, kind: str, pod: Raw) -> None:
        uid = pod["metadata"].get("uid")
        node = next((s for s in self._specs if s.name == pod.get("spec", {}).get("nodeName")), None)
        if kind == "BOOKMARK" or node is None:
            return
        known = self._pods.get(uid)
        if kind == "DELETED":
            if known is not None:
                self._pods.pop(uid).task.cancel()
        elif known is not None:
            known.update(pod)
        else:
            self._addresses += 1
            address = f"10.{self._addresses >> 16 & 255}.{self._addresses >> 8 & 255}.{self._addresses & 255}"
            self._pods[uid] = LightPod(self.api, pod, node, address, self.wrong.append, self._attached)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _write_identity(cluster: Cluster) -> tuple[Path, Path]:
    """The administrator's certificate and key, from the kubeconfig."""
    user = json.loads(cluster.kubeconfig.read_text())["users"][0]["user"]
    found = []
    for what in ("certificate", "key"):
        path = cluster.directory / f"light-nodes.{what}"
        path.touch(mode=0o600)
        path.write_bytes(base64.b64decode(user[f"client-{what}-data"]))
        found.append(path)
    return found[0], found[1]


class LightPod:
    """The life of one pod."""

    def __init__(
        self, api: Api, pod: Raw, node: NodeSpec, address: str, blame: Callable[[str], None],
        attached: dict[tuple[str, str], tuple[str, str]],
    ) -> None:  # fmt: skip
        self.api, self.pod, self.node, self.blame, self.attached = api, pod, node, blame, attached
        metadata, spec = pod["metadata"], pod["spec"]
        self.namespace, self.name, self.uid = metadata["namespace"], metadata["name"], metadata["uid"]
        self.path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        self.address, self.began = address, time.time()
        self.failure: tuple[str, str] | None = None
        self.init = [self._state(c) for c in spec.get("initContainers") or ()]
        self.main = [self._state(c) for c in spec["containers"]]
        self.leaving = asyncio.Event()
        self._begun = [asyncio.Event() for _ in self.init]
        self._beside: list[asyncio.Task[None]] = []  # sidecars
        self._reporting = asyncio.Lock()
        self.task = asyncio.get_running_loop().create_task(self._live())
        self.update(pod)

    def _state(self, container: Raw) -> ContainerState:
        waits = Waiting("PodInitializing") if self.pod["spec"].get("initContainers") else Waiting()
        sidecar = container.get("restartPolicy") == "Always"
        return ContainerState(container["name"], container.get("image", ""), waits, sidecar=sidecar)

    def update(self, pod: Raw) -> None:
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self.leaving.set()

    async def _live(self) -> None:
        try:
            if (self.pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
                work = asyncio.create_task(self._work())
                leave = asyncio.create_task(self.leaving.wait())
                try:
                    await asyncio.wait((work, leave), return_when=asyncio.FIRST_COMPLETED)
                    if work.done():
                        work.result()
                finally:
                    await _cancel([work, leave, *self._beside])
            await self.leaving.wait()
            await self._remove()
        except asyncio.CancelledError:
            raise
        except Exception:
            self.blame(f"{self.path}: {traceback.format_exc()}")

    async def _remove(self) -> None:
        while True:
            with contextlib.suppress(*TROUBLE):
                with contextlib.suppress(ApiError):
                    body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
                    await self.api.request("DELETE", self.path, body)
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _work(self) -> None:
        if reason := self.node.labels.get(REFUSES):
            self.failure = reason, f"Pod was rejected: node {self.node.name} refuses all pods ({reason})"
            await self._report()
            return
        try:
            async with asyncio.timeout(self.pod["spec"].get("activeDeadlineSeconds")):
                await self._report()
                await self._mount()
                if await self._initialize():
                    await self._run_all(self.pod["spec"]["containers"], self.main)
        except TimeoutError:
            self.failure = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
            await self._report()

    # Status and events.

    async def _report(self) -> None:
        async with self._reporting:  # its containers are tasks of their own
            await self._send_status()

    async def _send_status(self) -> None:
        told = status.compute_status(
            self.pod, self.init, self.main, pod_ip=self.address, host_ip="127.0.0.1", start_time=self.began,
            now=time.time(), failure=self.failure,
        )  # fmt: skip
        while True:
            try:
                body = {"metadata": {"uid": self.uid}, "status": told}
                await self.api.request("PATCH", f"{self.path}/status", body, content_type=STRATEGIC)
                return
            except ApiError as error:
                if error.status in (404, 409):
                    return
                if error.status in (400, 422):
                    raise
            except TROUBLE:
                pass
            await asyncio.sleep(RETRY_SECONDS)

    async def _set(self, states: list[ContainerState], at: int, **changes: Any) -> None:
        if states[at].changed(**changes) != states[at]:
            states[at] = states[at].changed(**changes)
            await self._report()

    async def _tell(self, reason: str, message: str) -> bool:
        """Whether the event could be written."""
        about = {"kind": "Pod", "namespace": self.namespace, "name": self.name, "uid": self.uid}
        body = {
            "metadata": {"generateName": "light-"}, "involvedObject": about, "type": "Warning", "reason": reason,
            "message": message, "lastTimestamp": status.timestamp(time.time()), "source": {"component": "kubelet"},
        }  # fmt: skip
        try:
            await self.api.request("POST", f"/api/v1/namespaces/{self.namespace}/events", body)
        except TROUBLE:
            return False
        return True

    # What a pod needs.

    async def _mount(self) -> None:
        told = ""
        while why := await self._find_unmounted():
            if why != told and await self._tell("FailedMount", why):
                told = why
            await asyncio.sleep(RETRY_SECONDS)

    async def _find_unmounted(self) -> str:
        for volume in self.pod["spec"].get("volumes") or ():
            sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
            for source in sources:
                if why := await self._find_missing(source):
                    return f'MountVolume.SetUp failed for volume "{volume["name"]}" : {why}'
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if claim and (why := await self._find_other_user(claim)):
                return why
            if (csi := volume.get("csi")) is not None:
                driver = csi.get("driver")
                return f"kubernetes.io/csi: driver name {driver} not found in the list of registered CSI drivers"
            if (nfs := volume.get("nfs")) is not None:
                return f'MountVolume.SetUp failed for volume "{volume["name"]}" : mount {nfs["server"]}:{nfs["path"]}'
            if volume.get("gitRepo") is not None:
                return f'MountVolume.SetUp failed for volume "{volume["name"]}" : gitRepo volumes are disabled'
            path = volume.get("hostPath") or {}
            if path.get("type") in ("Directory", "File", "Socket") and not Path(path["path"]).exists():
                return f"hostPath type check failed: {path['path']} is not a {path['type'].lower()}"
        return ""

    async def _find_other_user(self, claim: str) -> str:
        """Who else has a disk that is attached to one node at a time."""
        path = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims/{claim}"
        try:
            found = await self.api.request("GET", path)
        except ApiError:
            return f'persistentvolumeclaim "{claim}" not found'
        if found["spec"]["accessModes"] != ["ReadWriteOnce"]:
            return ""
        disk = found["spec"].get("volumeName", "")
        user = self.attached.setdefault((self.namespace, disk), (self.node.name, self.name))
        if user[0] == self.node.name:
            return ""
        return f'Multi-Attach error for volume "{disk}" Volume is already used by pod(s) {user[1]}'

    async def _find_missing(self, source: Raw) -> str:
        """Which ConfigMap, Secret or key a volume or variable needs and does not find."""
        kinds = (("configMap", "configmaps", "name"), ("secret", "secrets", "secretName"),
                 ("configMapRef", "configmaps", "name"), ("secretRef", "secrets", "name"),
                 ("configMapKeyRef", "configmaps", "name"), ("secretKeyRef", "secrets", "name"))  # fmt: skip
        for key, plural, field in kinds:
            one = source.get(key)
            if one is None or one.get("optional"):
                continue
            name = one.get(field) or one.get("name") or ""
            try:
                found = await self.api.request("GET", f"/api/v1/namespaces/{self.namespace}/{plural}/{name}")
            except ApiError:
                return f'{plural[:-1].replace("map", "map")} "{name}" not found'
            keys = [item["key"] for item in one.get("items") or ()] + ([one["key"]] if "key" in one else [])
            have = {**(found.get("data") or {}), **(found.get("binaryData") or {})}
            lost = next((k for k in keys if k not in have), None)
            if lost is not None:
                return f"references non-existent config key: {lost} of {name}"
        return ""

    async def _has_pull_secret(self) -> bool:
        path = f"/api/v1/namespaces/{self.namespace}/secrets"
        for secret in self.pod["spec"].get("imagePullSecrets") or ():
            with contextlib.suppress(ApiError):
                await self.api.request("GET", f"{path}/{secret['name']}")
                return True
        return False

    async def _check(self, container: Raw) -> None:
        """Raises Refused if the image cannot be pulled or the container cannot be configured."""
        image = container.get("image") or ""
        if any(c in image for c in " \t\n@:/") and (" " in image or image.endswith((":", "/"))):
            raise Refused("InvalidImageName", f'Failed to apply default image tag "{image}": invalid reference format')
        if not image.startswith(HERE) and not (image.startswith(PRIVATE) and await self._has_pull_secret()):
            if container.get("imagePullPolicy") == "Never":
                raise Refused(
                    "ErrImageNeverPull", f'Container image "{image}" is not present with pull policy of Never'
                )
            raise Refused("ImagePullBackOff", f'Back-off pulling image "{image}": not found')
        for variable in container.get("env") or ():
            file = (variable.get("valueFrom") or {}).get("fileKeyRef") or {}
            if file and not file.get("optional"):
                told = "couldn't parse env file"  # the kubelet of 1.36 names neither file nor key
                raise Refused("CreateContainerConfigError", told)
            if why := await self._find_missing(variable.get("valueFrom") or {}):
                raise Refused("CreateContainerConfigError", why)
        for source in container.get("envFrom") or ():
            if why := await self._find_missing(source):
                raise Refused("CreateContainerConfigError", why)
            if (source.get("secretRef") or {}).get("name") == NO_TEXT:
                raise Refused(
                    "CreateContainerError", "grpc: error while marshaling: string field contains invalid UTF-8"
                )
        pod, own = (one.get("securityContext") or {} for one in (self.pod["spec"], container))
        if (own | pod).get("runAsNonRoot") and not {**pod, **own}.get("runAsUser"):
            raise Refused("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")

    # Containers.

    async def _initialize(self) -> bool:
        for at, container in enumerate(self.pod["spec"].get("initContainers") or ()):
            if self.init[at].sidecar:  # the next container begins when it has been started
                self._beside.append(asyncio.create_task(self._run(container, self.init, at)))
                await self._begun[at].wait()
                continue
            await self._run(container, self.init, at)
            ended = self.init[at].state
            if isinstance(ended, Ended) and ended.exit_code:
                return False
        return True

    async def _run_all(self, containers: Sequence[Raw], states: list[ContainerState]) -> None:
        async with asyncio.TaskGroup() as group:
            for at, container in enumerate(containers):
                group.create_task(self._run(container, states, at))

    async def _run(self, container: Raw, states: list[ContainerState], at: int) -> None:
        while True:
            ended = await self._run_once(container, states, at)
            if not is_restarted(container, ended):
                return
            waiting = Waiting("CrashLoopBackOff", f"back-off restarting failed container {container['name']}")
            restarts = states[at].restarts + 1
            await self._set(states, at, state=waiting, last=ended, restarts=restarts)
            await asyncio.sleep(RESTART_SECONDS * 2 ** min(restarts, 5))

    async def _run_once(self, container: Raw, states: list[ContainerState], at: int) -> Ended:
        """How it ended."""
        while True:
            try:
                await self._check(container)
                break
            except Refused as why:
                await self._set(states, at, state=Waiting(why.reason, str(why)))
                await asyncio.sleep(RETRY_SECONDS)
        began = time.time()
        program = find_program(container, is_init=states is self.init)
        if not program:
            text = f'exec: "{container["command"][0]}": executable file not found in $PATH'
            ended = Ended(128, "StartError", began, began, message=text)
            await self._end(states, at, ended)
            return ended
        await self._set(states, at, state=Running(began), ready=True, started=True, container_id="light://1")
        if states is self.init:
            self._begun[at].set()
        ends = [asyncio.create_task(one) for one in (self._execute(container, program), self._probe(container))]
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            code = next(iter(done)).result()
        finally:
            await _cancel(ends)
        message = "Traceback (most recent call last):\nValueError: asked to fail" if code == 1 else ""
        reason = status.ended_reason(code)
        ended = Ended(code, reason, began, time.time(), message=message, container_id="light://1")
        await self._end(states, at, ended)
        return ended

    async def _end(self, states: list[ContainerState], at: int, ended: Ended) -> None:
        await self._set(states, at, state=ended, ready=False, started=False)

    async def _execute(self, container: Raw, program: str) -> int:
        if program in ("true", "false"):
            await asyncio.sleep(0.1)
            return int(program == "false")
        if program == "fallocate":
            await asyncio.sleep(FILL_SECONDS)
            self.failure = "Evicted", "The node was low on resource: ephemeral-storage. Threshold quantity: 100Gi"
            await self._report()
            return 137
        if program == "torchrun":
            return await LightAgent(self, container).run()
        await asyncio.Event().wait()
        raise AssertionError("it never ends")

    async def _probe(self, container: Raw) -> int:
        """Ends when the kubelet would kill the container for a probe or a hook that fails."""
        hook = ((container.get("lifecycle") or {}).get("postStart") or {}).get("exec")
        if hook is not None and hook.get("command") == ["false"]:
            await self._tell("FailedPostStartHook", "PostStartHook failed")
            return 137
        for key in ("startupProbe", "livenessProbe"):
            probe = container.get(key) or {}
            if (probe.get("exec") or {}).get("command") == ["false"]:
                await asyncio.sleep((probe.get("periodSeconds") or 10) * (probe.get("failureThreshold") or 3))
                await self._tell("Unhealthy", f"{key} failed")
                return 137
        await asyncio.Event().wait()
        raise AssertionError("it never ends")


class LightAgent:
    """An agent that takes part in worlds and computes nothing."""

    def __init__(self, pod: LightPod, container: Raw) -> None:
        self.pod, self.identity = pod, uuid.uuid4().hex
        self.env = {v["name"]: v.get("value", "") for v in container.get("env") or ()}
        self.phase, self.generation = "ready", 0

    async def run(self) -> int:
        url = self.env.get(names.ENV_HUB_URL, "")
        if self.env.get("PET_RDZV_BACKEND") != names.RENDEZVOUS_BACKEND or "://" not in url:
            await asyncio.Event().wait()
        while True:
            try:
                return await self._talk(f"{url}/v1/agent")
            except (WebSocketException, *TROUBLE):
                await asyncio.sleep(AGENT_SECONDS)

    async def _talk(self, url: str) -> int:
        headers = {"Authorization": f"Bearer {await self._find_token()}"}
        tls = ssl.create_default_context() if url.startswith("wss") else None
        async with connect(url, ssl=tls, additional_headers=headers, open_timeout=10, ping_interval=None) as ws:
            await ws.send(json.dumps({"v": 1, "type": "hello", "agent": self.identity, "state": self._state()}))
            pinging = asyncio.create_task(self._ping(ws))
            try:
                while True:
                    message = json.loads(await ws.recv())
                    if message["type"] == "directive":
                        code = await self._obey(ws, message["directive"])
                        if code is not None:
                            return code
            finally:
                await _cancel([pinging])

    async def _ping(self, ws: ClientConnection) -> None:
        while True:
            await asyncio.sleep(AGENT_SECONDS)
            await ws.ping()

    async def _find_token(self) -> str:
        pod = self.pod
        account = pod.pod["spec"].get("serviceAccountName") or "default"
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid}
        body = {"spec": {"audiences": [names.TOKEN_AUDIENCE], "expirationSeconds": 3600, "boundObjectRef": bound}}
        path = f"/api/v1/namespaces/{pod.namespace}/serviceaccounts/{account}/token"
        made = await pod.api.request("POST", path, body)
        return str(made["status"]["token"])

    def _state(self) -> dict[str, Any]:
        said: dict[str, Any] = {"phase": self.phase, "generation": self.generation, "nproc": 1}
        if self.phase == "ready":
            said["store"] = {"address": self.pod.address, "port": 29500}
        return said

    async def _say(self, ws: ClientConnection, phase: str) -> None:
        self.phase = phase
        await ws.send(json.dumps({"v": 1, "type": "state", "state": self._state()}))

    async def _obey(self, ws: ClientConnection, directive: Raw) -> int | None:
        action, generation = directive["action"], directive.get("generation", 0)
        if action == "stop":
            return 0 if directive.get("ok", True) else 1
        if action == "world" and self.phase == "ready" and generation > self.generation:
            self.generation = generation
            await self._say(ws, "running")
        elif action == "regroup" and self.phase == "running" and self.generation <= generation:
            await self._say(ws, "stopping")
            await self._say(ws, "ready")
        elif action == "regroup" and self.phase == "ready" and self.generation < generation:
            self.generation = generation
            await self._say(ws, "ready")
        return None
