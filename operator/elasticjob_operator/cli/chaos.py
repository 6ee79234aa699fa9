"""`chaos`: fault injection, to see that a job survives. Each command prints what it did."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import click

from elasticjob_operator.cli import common
from elasticjob_operator.cli.common import target_options, with_client
from elasticjob_operator.client import Client, Job, NotFoundError, Pod
from elasticjob_operator.client.execute import ExecUnavailableError
from elasticjob_operator.client.rules import choose_pods

NONE_FOUND: Final = 3
# Finds the process whose environment says RANK=$1, as torch's launcher sets it, and kills it. It has to be of the pod
# with the UID $2: a container may see the processes of others.
_KILL_SCRIPT: Final = """
found=3
for file in $(grep -lzx "ELASTICJOB_POD_UID=$2" /proc/[0-9]*/environ 2>/dev/null); do
  pid=${file#/proc/}; pid=${pid%/environ}
  [ "$pid" = "$$" ] && continue
  grep -qzx "RANK=$1" "$file" 2>/dev/null || continue
  kill -KILL "$pid" 2>/dev/null && found=0
done
exit $found
"""


@click.group()
def chaos() -> None:
    """Kill a rank, a pod or all pods on a node, to see that the job continues."""


@chaos.command()
@common.job_argument
@click.argument("rank", type=click.IntRange(min=0))
@click.option(
    "--how",
    type=click.Choice(["auto", "process", "pod"]),
    default="auto",
    show_default=True,
    help="process: SIGKILL by exec in the pod. pod: delete it without grace. auto: the first that works.",
)
@target_options
def rank(name: str, rank: int, how: str) -> None:
    """Kill one RANK (the number that the script sees in RANK)."""

    async def work(client: Client) -> None:
        job = await client.get(name)
        pod = choose_pods(job, await client.pods(name), rank, patient=False)[0]
        if how != "pod":
            problem = await _kill_process(client, pod, rank)
            if problem is None:
                common.echo(f"killed the process of rank {rank} in pod {pod.name} (SIGKILL by exec)")
                return
            if how == "process":
                raise common.Failure(f"rank {rank} was not killed: {problem}")
            common.warn(f"{problem}; deleting the pod instead")
        await client.kill_pod(pod)
        common.echo(f"killed pod {pod.name} with rank {rank} (deleted without grace)")

    with_client(work)


async def _kill_process(client: Client, pod: Pod, rank: int) -> str | None:
    """Kill the process of a rank; return the reason if that failed."""
    try:
        code, output = await client.execute(pod, ["sh", "-c", _KILL_SCRIPT, "sh", str(rank), pod.uid])
    except ExecUnavailableError as error:
        return str(error)
    if code == NONE_FOUND:
        return f"no process with RANK={rank} in pod {pod.name}"
    return None if code == 0 else f"exec in pod {pod.name} failed with exit code {code}: {output.strip()[-200:]}"


@chaos.command()
@common.job_argument
@click.argument("pod", required=False)
@click.option("--seed", type=int, help="Seed for a reproducible choice.")
@target_options
def pod(name: str, pod: str | None, seed: int | None) -> None:
    """Kill a POD, by name or index. Default: a random member of the world."""

    async def work(client: Client) -> None:
        job, pods = await client.get(name), await client.pods(name)
        victim = choose_victim(job, pods, pod, random.Random(seed))  # noqa: S311 - chaos needs no secrecy
        await client.kill_pod(victim)
        common.echo(f"killed pod {victim.name} on {victim.node or 'no node'} (deleted without grace)")

    with_client(work)


def choose_victim(job: Job, pods: list[Pod], wanted: str | None, chance: random.Random) -> Pod:
    alive = [p for p in pods if not p.ended and not p.leaving]
    if wanted is not None:
        found = [p for p in alive if wanted in (p.name, str(p.index))]
        if not found:
            raise NotFoundError(f"pod {wanted}: {job.name} has {', '.join(p.name for p in alive) or 'no pods'}")
        return found[0]
    members = {m.pod for m in job.members}
    candidates = [p for p in alive if p.name in members] or alive
    if not candidates:
        raise NotFoundError(f"job {job.name} has no running pod")
    return chance.choice(sorted(candidates, key=lambda p: p.name))


@chaos.command()
@common.job_argument
@click.argument("node", required=False)
@target_options
def node(name: str, node: str | None) -> None:
    """Kill all pods of the job on a NODE, as if it was lost. Default: the node of rank 0."""

    async def work(client: Client) -> None:
        job, pods = await client.get(name), await client.pods(name)
        victims = choose_node_victims(job, pods, node)
        for victim in victims.pods:
            await client.kill_pod(victim)
            common.echo(f"killed pod {victim.name} on {victims.node} (deleted without grace)")

    with_client(work)


@dataclass(frozen=True)
class NodeVictims:
    node: str
    pods: tuple[Pod, ...]


def choose_node_victims(job: Job, pods: list[Pod], node: str | None) -> NodeVictims:
    alive = [p for p in pods if not p.ended and not p.leaving and p.node]
    wanted = node or (job.members[0].node if job.members else "")
    found = tuple(p for p in alive if p.node == wanted)
    if not found:
        known = ", ".join(sorted({p.node for p in alive})) or "none"
        raise NotFoundError(f"node {wanted or '?'}: no pod of {job.name} runs there; its nodes: {known}")
    return NodeVictims(wanted, found)
