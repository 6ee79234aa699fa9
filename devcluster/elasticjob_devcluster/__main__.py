"""`elasticjob-devcluster`: the cluster from the command line."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from elasticjob_devcluster import BinariesUnavailable, Cluster, ClusterError, DrainTimeout, KubeError, NodeSpec, Tuning
from elasticjob_devcluster.api.apply import apply_object, read_objects
from elasticjob_devcluster.config import default_directory
from elasticjob_devcluster.controlplane import binaries
from elasticjob_devcluster.node.environ import parse_quantity

EXPECTED = (BinariesUnavailable, ClusterError, DrainTimeout, KubeError, OSError, ValueError)


class Friendly(click.Group):
    """Reports expected errors as one clear line, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EXPECTED as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Friendly)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=None,
    help="Where the cluster lives. Default: below ~/.local/state.",
)
@click.pass_context
def main(ctx: click.Context, directory: Path | None) -> None:
    """A real Kubernetes control plane on this machine, with nodes that run pods as processes."""
    ctx.obj = directory or default_directory()


@main.command()
@click.option("--nodes", default=3, show_default=True, help="Number of nodes.")
@click.option("--gpus-per-node", default=2, show_default=True, help="Number of nvidia.com/gpu that each node declares.")
@click.option("--cpus-per-node", default="16", show_default=True)
@click.option("--memory-per-node", default="64Gi", show_default=True)
@click.option(
    "--resource", "resources", multiple=True, metavar="NAME=COUNT", help="Further resource that each node declares."
)
@click.option("--path-prepend", multiple=True, help="Directory to put first in the containers' PATH.")
@click.option("--node-grace", default="10s", show_default=True, help="Silence after which a node is NotReady.")
@click.option("--toleration-seconds", default=300, show_default=True, help="How long pods stay on a NotReady node.")
@click.option("--audit", is_flag=True, help="Write an audit log of all requests.")
@click.option(
    "--runtime",
    type=click.Choice(["process", "containerd"]),
    default="process",
    show_default=True,
    help="How nodes run pods: as local processes, or images in containers (needs root).",
)
@click.pass_obj
def up(
    directory: Path,
    nodes: int,
    gpus_per_node: int,
    cpus_per_node: str,
    memory_per_node: str,
    resources: tuple[str, ...],
    path_prepend: tuple[str, ...],
    node_grace: str,
    toleration_seconds: int,
    audit: bool,
    runtime: str,
) -> None:
    """Start a cluster that runs until `down`."""
    extended = dict(_parse_resource(text) for text in resources)
    specs = [
        NodeSpec(
            f"node-{i}",
            gpus=gpus_per_node,
            cpu=cpus_per_node,
            memory=memory_per_node,
            extended=extended,
            runtime=runtime,
        )
        for i in range(nodes)
    ]
    for spec in specs[:1]:
        for amount in spec.capacity().values():
            parse_quantity(amount)
    tuning = Tuning(node_monitor_grace_period=node_grace, toleration_seconds=toleration_seconds, audit=audit)
    began = time.monotonic()
    cluster = Cluster.start(specs, directory=directory, path_prepend=path_prepend, tuning=tuning, owned=False)
    seconds = time.monotonic() - began
    click.echo(f"Kubernetes {cluster.version} with {nodes} nodes is up after {seconds:.1f} s.")
    click.echo(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}")


def _parse_resource(text: str) -> tuple[str, str]:
    name, separator, amount = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r}: write NAME=COUNT, as amd.com/gpu=2", param_hint="--resource")
    return name, amount


@main.command()
@click.pass_obj
def down(directory: Path) -> None:
    """Stop the cluster and remove everything that belongs to it."""
    Cluster.attach(directory).stop()
    click.echo("The cluster is gone.")


@main.command()
@click.option("--json", "as_json", is_flag=True)
@click.pass_obj
def status(directory: Path, as_json: bool) -> None:
    """Show the running components and nodes."""
    cluster = Cluster.attach(directory)
    state = cluster.status()
    if as_json:
        click.echo(json.dumps(state, indent=1))
        return
    click.echo(f"Kubernetes {cluster.version} at {cluster.server}")
    for name, alive in state["components"].items():
        click.echo(f"  {name:<26}{'runs' if alive else 'DEAD'}")
    for node in state["nodes"]:
        click.echo(f"  {node['name']:<26}{node_summary(node, cluster.node_ready(node['name']))}")


def node_summary(node: dict[str, Any], ready: bool) -> str:
    words = ["Ready" if ready else "NotReady"]
    if not node["runtime"]:
        words.append("without power")
    elif not node["agent"]:
        words.append("agent stopped")
    if node["cut"]:
        words.append("cut off")
    return ", ".join(words)


def _node_command(name: str, text: str, action: Callable[[Cluster, str], None]) -> None:
    @main.command(name, help=text)
    @click.argument("node")
    @click.pass_obj
    def command(directory: Path, node: str) -> None:
        action(Cluster.attach(directory), node)


_node_command("kill-node", "Power loss: the node and all processes of its pods die at once.", Cluster.kill_node)
_node_command("restart-node", "Power loss, then a fresh boot.", Cluster.restart_node)
_node_command("start-node", "Start a node that was killed, or only its stopped agent.", Cluster.start_node)
_node_command("stop-agent", "Kill the node's agent only; its pods go on.", Cluster.stop_agent)
_node_command("pause-node", "Freeze the node and its pods (SIGSTOP).", Cluster.pause_node)
_node_command("resume-node", "Wake a frozen node (SIGCONT).", Cluster.resume_node)
_node_command("cut", "Partition the node's agent from the API server.", Cluster.cut)
_node_command("heal", "Undo `cut`.", Cluster.heal)
_node_command("cordon", "Mark the node unschedulable.", Cluster.cordon)
_node_command("uncordon", "Mark the node schedulable.", Cluster.uncordon)
_node_command("remove-node", "Remove the node for good.", Cluster.remove_node)


@main.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("-n", "--namespace", default="default", show_default=True, help="For objects that name none.")
@click.pass_obj
def apply(directory: Path, paths: tuple[Path, ...], namespace: str) -> None:
    """Create or replace the objects in YAML files or directories of them."""
    kube = Cluster.attach(directory).kube
    for wanted in read_objects(paths):
        click.echo(apply_object(kube, wanted, namespace))


@main.command("load-image")
@click.argument("archive", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def load_image(directory: Path, archive: Path) -> None:
    """Import an image archive, docker's or OCI's, on all nodes that run images."""
    Cluster.attach(directory).load_image(archive)


@main.command("add-node")
@click.argument("node")
@click.option("--gpus", default=2, show_default=True)
@click.pass_obj
def add_node(directory: Path, node: str, gpus: int) -> None:
    """Add a node."""
    Cluster.attach(directory).add_node(NodeSpec(node, gpus=gpus))


@main.command()
@click.argument("node")
@click.option("--timeout", default=60.0, show_default=True, help="Seconds to wait for the pods to leave.")
@click.pass_obj
def drain(directory: Path, node: str, timeout: float) -> None:
    """Evict the node's pods as `kubectl drain` does; budgets are honoured."""
    Cluster.attach(directory).drain(node, timeout=timeout)


@main.command()
@click.argument("node")
@click.argument("taint")
@click.pass_obj
def taint(directory: Path, node: str, taint: str) -> None:
    """Add the TAINT `key=value:Effect`, or remove it with a `-` at the end."""
    key, value, effect, remove = parse_taint(taint)
    Cluster.attach(directory).taint(node, key, value, effect, remove=remove)


def parse_taint(text: str) -> tuple[str, str, str, bool]:
    remove = text.endswith("-")
    pair, _, effect = text.removesuffix("-").partition(":")
    key, _, value = pair.partition("=")
    if not key or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise click.BadParameter(f"{text!r}: write key=value:NoSchedule, :PreferNoSchedule or :NoExecute")
    return key, value, effect, remove


@main.command()
@click.argument("pod")
@click.option("-n", "--namespace", default="default", show_default=True)
@click.option("-c", "--container", default=None)
@click.option("-p", "--previous", is_flag=True, help="Log of the previous attempt.")
@click.pass_obj
def logs(directory: Path, pod: str, namespace: str, container: str | None, previous: bool) -> None:
    """Print a pod's log."""
    click.echo(Cluster.attach(directory).logs(namespace, pod, container, previous=previous), nl=False)


@main.command()
@click.pass_obj
def kubeconfig(directory: Path) -> None:
    """Print the path of the kubeconfig."""
    click.echo(Cluster.attach(directory).kubeconfig)


@main.command("binaries")
@click.option("--node-programs", is_flag=True, help="Also kubelet and kube-proxy, for nodes that run containers.")
def get_binaries(node_programs: bool) -> None:
    """Find or build the control plane's programs; print their directory."""
    wanted = binaries.SERVERS + (binaries.NODE_PROGRAMS if node_programs else ())
    click.echo(binaries.find_or_build(wanted))


if __name__ == "__main__":
    sys.exit(main())
