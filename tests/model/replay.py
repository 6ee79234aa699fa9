"""Holds model and code together: what the model's operator looked at, shown to the real `membership.decide`."""

from __future__ import annotations

from controller.builders import NOW, make_agent, make_pod, make_situation
from elasticjob_operator import api, membership, wire
from elasticjob_operator.membership import State
from elasticjob_operator.observe import format_time
from elasticjob_operator.standing import Situation, Sizes, Worker
from model.regroup_model import READY, RUNNING, UNHEARD, YOUNG, Decided, View, is_connected

AWAY = {"young": ("closed", 0.5), "old": ("closed", 5.0), "silent": ("silent", 5.0)}
KINDS = {"keep": (State.RUNNING, State.STARTING), "regroup": (State.REGROUPING,), "wait": (State.WAITING,)}


def uid_of(slot: int, life: int) -> str:
    return f"u{slot}" if not life else f"u{slot}.{life}"


def situation_of(view: View) -> Situation:
    """The same view as the operator's own values; patience of every kind is over, but where the view says it is not."""
    workers = []
    for slot, (life, ended, known) in enumerate(view.agents):
        pod = make_pod(slot, "Failed" if ended else "Running", attempt=life)
        agent = None
        if is_connected(known):
            phase, generation = known
            agent = make_agent(
                slot, phase, generation, attempt=life, port=_port(slot, life, known), state_since=NOW - 20
            )
        elif known != UNHEARD and not ended:
            lost_by, ago = AWAY[known[0]]
            agent = make_agent(slot, READY, attempt=life, lost_by=lost_by, since=NOW - ago)
        workers.append(Worker(pod, agent))
    members = [
        api.Member(pod=f"digits-worker-{slot}", uid=uid_of(slot, life), rank=rank)
        for rank, (slot, life) in enumerate(view.world)
    ]
    world = api.RendezvousStatus(generation=view.generation)
    if members:
        slot, life = view.world[0]
        known = view.agents[slot][2]
        # The port that rank 0 had when the world was formed; where it stands ready before it, it still has it.
        still = known[0] == READY and 0 <= known[1] < view.generation and view.agents[slot][0] == life
        store = api.StoreAddress(address="10.0.0.1", port=_port(slot, life, known) or 1 if still else 1)
        update = {"members": members, "formed_time": format_time(NOW - 20), "store": store}
        world = world.model_copy(update=update)
    return make_situation(
        world,
        tuple(workers),
        sizes=Sizes(view.min, view.wanted),
        hub_started=NOW - (5 if view.grace else 1000),
    )


def _port(slot: int, life: int, known: tuple[str, int]) -> int | None:
    return 40_000 + 1000 * slot + 100 * life + known[1] if known[0] == READY else None


def compare(view: View, decided: Decided) -> str:
    """How the code differs from the model here; "" where it does not."""
    real = membership.decide(situation_of(view))
    told = {uid: _short(d) for uid, d in real.directives.items()}
    expected = {uid_of(slot, view.agents[slot][0]): directive for slot, directive in decided.told}
    if decided.kind == "form":
        members = tuple(m.uid for m in real.world.members) if real.world else ()
        wanted = tuple(uid_of(*m) for m in decided.world)
        if members != wanted:
            return f"the model forms {wanted}, the code {members or real.state}"
    elif real.world is not None or real.state not in KINDS[decided.kind]:
        return f"the model says {decided.kind}, the code {real.state} ({real.reason})"
    return "" if told == expected else f"the model tells {expected}, the code {told}"


def _short(directive: wire.Directive) -> tuple[str, int]:
    generation = 0 if isinstance(directive, wire.Stop) else directive.generation
    return directive.action, generation


__all__ = ["RUNNING", "YOUNG", "compare", "situation_of"]
