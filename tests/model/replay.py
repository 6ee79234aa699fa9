"""Holds model and code together: what the model's operator looked at, shown to the real `membership.decide`."""

from __future__ import annotations

from controller.builders import NOW, make_agent, make_pod, make_situation
from elasticjob_operator import api, membership, wire
from elasticjob_operator.membership import State
from elasticjob_operator.observe import format_time
from elasticjob_operator.standing import Situation, Sizes, Worker
from model.regroup_model import FORMER, OUTSIDE, READY, UNHEARD, Decided, View

AWAY = {"young": ("closed", 0.5), "old": ("closed", 5.0), "silent": ("silent", 5.0)}
KINDS = {"keep": (State.RUNNING, State.STARTING), "regroup": (State.REGROUPING,), "wait": (State.WAITING,)}


def situation_of(view: View) -> Situation:
    """The same view as the operator's own values; patience of every kind is over, but where the view says it is not."""
    workers = []
    for slot, (_, ended, known) in enumerate(view.agents):
        pod = make_pod(slot, "Failed" if ended else "Running")
        agent = None
        if known != UNHEARD and not ended:
            phase, generation, away = known
            lost_by, ago = AWAY.get(away, ("", 50))
            agent = make_agent(slot, phase, generation, lost_by=lost_by, since=NOW - ago, state_since=NOW - 20)
        workers.append(Worker(pod, agent))
    members = [
        api.Member(pod=f"digits-worker-{slot}", uid=f"u{slot}.former" if place == FORMER else f"u{slot}", rank=rank)
        for rank, (slot, place) in enumerate((s, p) for s, (p, _, _) in enumerate(view.agents) if p != OUTSIDE)
    ]
    world = api.RendezvousStatus(generation=view.generation)
    if members:
        # The store that rank 0 had when the world was formed: where it is ready and has not started, it still has it.
        store = api.StoreAddress(address="10.0.0.1", port=40_000 + int(members[0].pod.rpartition("-")[2]))
        update = {"members": members, "formed_time": format_time(NOW - 20), "store": store}
        world = world.model_copy(update=update)
    return make_situation(
        world,
        tuple(workers),
        sizes=Sizes(view.min, view.wanted),
        hub_started=NOW - (5 if view.grace else 1000),
    )


def compare(view: View, decided: Decided) -> str:
    """How the code differs from the model here; "" where it does not."""
    real = membership.decide(situation_of(view))
    told = {uid: _short(d) for uid, d in real.directives.items()}
    expected = {f"u{slot}": directive for slot, directive in decided.told}
    if decided.kind == "form":
        members = tuple(m.uid for m in real.world.members) if real.world else ()
        wanted = tuple(f"u{slot}" for slot in decided.world)
        if members != wanted:
            return f"the model forms {wanted}, the code {members or real.state}"
    elif real.world is not None or real.state not in KINDS[decided.kind]:
        return f"the model says {decided.kind}, the code {real.state} ({real.reason})"
    return "" if told == expected else f"the model tells {expected}, the code {told}"


def _short(directive: wire.Directive) -> tuple[str, int]:
    generation = 0 if isinstance(directive, wire.Stop) else directive.generation
    return directive.action, generation


__all__ = ["READY", "compare", "situation_of"]
