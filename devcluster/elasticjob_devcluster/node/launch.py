"""Converts a pod's container to the runtime's spec: environment, command, mounts, directories."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elasticjob_devcluster.node import environ
from elasticjob_devcluster.node.context import Node
from elasticjob_devcluster.node.volumes import PodVolumes, fetch_data
from elasticjob_devcluster.runtime.sandbox import Mode

Raw = Mapping[str, Any]

DEFAULT_MESSAGE_PATH = "/dev/termination-log"


async def build_launch(
    node: Node, pod: Raw, container: Raw, volumes: PodVolumes, identity: str, attempt: int
) -> dict[str, Any]:
    """The runtime's spec. Raises ConfigError if the container cannot be configured."""
    uid = pod["metadata"]["uid"]
    home = node.pod_directory(uid) / "containers" / container["name"]
    for part in ("home", "scratch"):
        (home / part).mkdir(parents=True, exist_ok=True)
    message = home / "termination-log"
    message.touch()
    message.chmod(0o666)  # whoever the container runs as
    env = environ.build_env(
        pod,
        container,
        await _fetch_references(node, pod, container),
        base=_base_env(node, pod, home),
        allocatable=node.settings.capacity,
        pod_ip=volumes.pod_ip,
        host_ip=node.settings.address,
    )
    mounts = build_mounts(container, volumes, env)
    mounts.append({"source": str(message), "target": container.get("terminationMessagePath") or DEFAULT_MESSAGE_PATH})
    mounts.append({"source": str(_write_hosts(node, pod, volumes.pod_ip)), "target": "/etc/hosts"})
    argv, cwd = environ.build_argv(container, env), container.get("workingDir") or str(home / "home")
    if node.mode == Mode.REWRITE:
        argv, env, cwd = _rewrite(mounts, argv, env, cwd)
    elif not Path(cwd).exists() and not any(cwd.startswith(m["target"]) for m in mounts):
        mounts.append({"source": str(home / "home"), "target": cwd})  # created on demand, invisible to the host
    return {
        "id": identity,
        "argv": argv,
        "env": env,
        "cwd": cwd,
        "log": str(node.log_path(uid, container["name"], attempt)),
        "hostname": hostname(pod),
        "scratch": str(home / "scratch"),
        "mounts": mounts,
    }


def hostname(pod: Raw) -> str:
    name: str = pod["spec"].get("hostname") or pod["metadata"]["name"]
    return name[:63].rstrip("-.")


def _base_env(node: Node, pod: Raw, home: Path) -> dict[str, str]:
    settings = node.settings
    return {
        "PATH": settings.path,
        "HOME": str(home / "home"),
        "HOSTNAME": hostname(pod),
        "LANG": "C.UTF-8",
        "KUBERNETES_SERVICE_HOST": settings.api_host,
        "KUBERNETES_SERVICE_PORT": str(settings.api_port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(settings.api_port),
    }


async def _fetch_references(node: Node, pod: Raw, container: Raw) -> dict[tuple[str, str], Mapping[str, str] | None]:
    namespace = pod["metadata"]["namespace"]

    async def fetch(kind: str, name: str) -> Mapping[str, str] | None:
        data = await fetch_data(node.api, namespace, kind.lower() + "s", name)
        return None if data is None else {k: v.decode(errors="surrogateescape") for k, v in data.items()}

    wanted = sorted(environ.references(container))
    found = await asyncio.gather(*(fetch(kind, name) for kind, name in wanted))
    return dict(zip(wanted, found, strict=True))


def build_mounts(container: Raw, volumes: PodVolumes, env: Mapping[str, str]) -> list[dict[str, Any]]:
    mounts = []
    for mount in container.get("volumeMounts") or ():
        source = volumes.path(mount["name"])
        sub = mount.get("subPath") or environ.expand(mount.get("subPathExpr") or "", env)
        if sub:
            source = source / sub
            if not source.exists():
                source.mkdir(parents=True)
        mounts.append(
            {
                "source": str(source.resolve()),
                "target": mount["mountPath"],
                "read_only": bool(mount.get("readOnly")),
            }
        )
    return mounts


def _write_hosts(node: Node, pod: Raw, pod_ip: str) -> Path:
    """The pod's own /etc/hosts, in which its name resolves to its address, as on any cluster."""
    spec, name = pod["spec"], hostname(pod)
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    names = [name]
    if spec.get("subdomain"):
        full = f"{name}.{spec['subdomain']}.{pod['metadata']['namespace']}"
        names = [f"{full}.svc.cluster.local", f"{full}.svc", full, name]
    lines.append(f"{pod_ip}\t{' '.join(names)}")
    lines += [f"{a['ip']}\t{' '.join(a.get('hostnames') or ())}" for a in spec.get("hostAliases") or ()]
    path = node.pod_directory(pod["metadata"]["uid"]) / "hosts"
    try:
        own = Path("/etc/hosts").read_text().splitlines()
    except OSError:
        own = []
    known = (platform.node(), "localhost")
    lines += [line for line in own if line.strip() and not line.startswith("#") and line.split()[-1] not in known]
    path.write_text("\n".join(lines) + "\n")
    return path


def _rewrite(
    mounts: list[dict[str, Any]], argv: list[str], env: dict[str, str], cwd: str
) -> tuple[list[str], dict[str, str], str]:
    places = [(m["target"], m["source"]) for m in mounts if m["target"] != "/etc/hosts"]
    return (
        [environ.rewrite_path(part, places) for part in argv],
        {k: v if k in ("HOME", "PATH") else environ.rewrite_path(v, places) for k, v in env.items()},
        environ.rewrite_path(cwd, places),
    )
