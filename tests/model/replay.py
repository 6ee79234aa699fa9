"""Verifies that the model matches the code, on both sides.

The views of the model's operator are passed to the real `membership.decide`, and the states of its agents to the real
`agent.machine`.
"""

from __future__ import annotations

from dataclasses import replace

from controller.builders import NOW, make_agent, make_pod, make_situation
from elasticjob.agent import events as agent_events
from elasticjob.agent import machine
from elasticjob.agent.state import Stage
from elasticjob.agent.state import State as AgentState
from elasticjob.protocol import wire as agent_wire
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.membership import decide
from elasticjob_operator.membership.decide import State
from elasticjob_operator.membership.member_health import Situation, Worker
from elasticjob_operator.sizing.legal import Sizes
from elasticjob_operator.times import format_time
from model.regroup_model import (
    FORMER,
    MUTE,
    OUTSIDE,
    READY,
    RUNNING,
    STOPPING,
    UNHEARD,
    Decided,
    Directive,
    Seat,
    View,
    obey,
)

AWAY = {"young": ("closed", 0.5), "old": ("closed", 5.0), "silent": ("silent", 5.0)}
KINDS = {"keep": (State.RUNNING, State.STARTING), "regroup": (State.REGROUPING,), "wait": (State.WAITING,)}


def situation_of(view: View) -> Situation:
    """The same view as the operator's own values; patience of every kind is over, but where the view says it is not."""
    workers = []
    waits = any(known[2] == MUTE for _, _, known in view.agents)
    for slot, (_, ended, known) in enumerate(view.agents):
        pod = make_pod(slot, "Failed" if ended else "Running")
        agent = None
        if known != UNHEARD and not ended:
            phase, generation, away = known
            lost_by, ago = AWAY.get(away, ("", 50))
            said = {"blocked": waits and phase == RUNNING and away != MUTE}
            is_mute, since = away == MUTE, NOW - ago
            agent = make_agent(
                slot, phase, generation, lost_by=lost_by, said=said, mute=is_mute, since=since, state_since=NOW - 20
            )
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
    """How the code differs from the model here; "" if it does not."""
    real = decide.decide(situation_of(view))
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
    generation = 0 if isinstance(directive, wire.Stop | wire.Probe) else directive.generation
    return directive.action, generation


# --- the agent -----------------------------------------------------------------------------------------------

OLD_STORE, NEW_STORE = agent_wire.Store("10.0.0.1", 4000), agent_wire.Store("10.0.0.1", 4001)


def machine_of(seat: Seat, *, sessions: bool) -> AgentState:
    """The agent's own state: as it is when nothing was heard since it became what the seat says."""
    store = OLD_STORE if seat.phase == READY else None
    published = agent_wire.AgentState(seat.phase, seat.generation, store, in_process=sessions)
    stopping = Stage.PAUSING if sessions else Stage.STOPPING
    stage = {READY: Stage.READY, RUNNING: Stage.RUNNING, STOPPING: stopping}[seat.phase]
    state = AgentState(published, 30.0, stage=stage, ran=True, proven=sessions, until=NOW + 60)
    return replace(state, idle=(agent_events.Idle(1),)) if sessions and seat.phase == READY else state


def directive_of(holds: Directive, rank: int) -> agent_wire.Directive:
    action, generation = holds
    if action == "regroup":
        return agent_wire.Regroup(generation, "")
    where = OLD_STORE if rank == 0 else agent_wire.Store("10.0.0.9", 1)
    return agent_wire.World(generation, rank, (1, 1), where)


def compare_seat(seat: Seat, *, sessions: bool, rank: int) -> str:
    """How the agent's machine differs from the model here; "" if it does not."""
    state, published, begun = machine_of(seat, sessions=sessions), [], 0
    happens: list[agent_events.Event] = []
    if seat.holds:
        hub = agent_events.HubView(directive=directive_of(seat.holds, rank), connected=True)
        happens = [agent_events.HubChanged(hub), agent_events.Entered(seat.holds[1]), agent_events.HubChanged(hub)]
    for event in happens:
        state, actions = machine.step(state, event, NOW)
        published += [(a.state.phase, a.state.generation) for a in actions if isinstance(a, agent_events.Publish)]
        begun += sum(isinstance(a, agent_events.Begin) for a in actions)
    after = obey(seat)
    expected = [] if after == seat else [(after.phase, after.generation)]
    if published != expected or begun != (after.phase == RUNNING and seat.phase == READY):
        return f"the model says {expected}, the machine {published} ({begun} worlds begun)"
    return _compare_ready(state, after, sessions=sessions) if after.phase == STOPPING else ""


def _compare_ready(state: AgentState, seat: Seat, *, sessions: bool) -> str:
    """From the end of a world the machine becomes ready with the same generation and a new store."""
    stopped: list[agent_events.Event] = [agent_events.Parked(), agent_events.Stopped(), agent_events.Wanted()]
    actions: agent_events.Actions = ()
    for event in [agent_events.Idle(1)] if sessions else stopped:
        state, actions = machine.step(state, event, NOW)
    if actions != (agent_events.CloseStores(), agent_events.OpenStore()):
        return f"the workers are out, and the machine does {actions}"
    state = replace(state, hub=agent_events.HubView())
    state, _ = machine.step(state, agent_events.Listening(NEW_STORE), NOW)
    ready = (state.published.phase, state.published.generation, state.published.store)
    return "" if ready == (READY, seat.generation, NEW_STORE) else f"the workers are out, and the machine is {ready}"


__all__ = ["READY", "compare", "compare_seat", "situation_of"]
