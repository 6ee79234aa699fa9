"""The regroup protocol as an explicit-state model: operator, hub, agents, connections, crashes. Pure.

Time is left out: patience that may end, ends at some point, and every order of events is tried. A state is a value;
`successors` gives everything that can happen next. `decide` says the protocol's rules once more, in few words and
without looking at the operator's own code; `replay` holds the two together.

All that is known of one slot is in its `Agent`, its place in the worlds too. So slots that stand alike can change
places, and numbers of generations that nobody remembers can go: `canonical` makes one state of all that differ only so.

What is left out on purpose: sizes with steps, spares, success, drains (an agent that leaves is one that stops), budget,
late members and deadlines for those that do not stop: a connected agent of the model always stops in the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

READY, RUNNING, STOPPING = "ready", "running", "stopping"
HERE, YOUNG, OLD, SILENT = "", "young", "old", "silent"  # whether the hub's connection to an agent is there, or why not
MUTE = "mute"  # the connection is there, the agent does not answer, and the others wait for it
Known = tuple[str, int, str]  # what the hub heard last (phase, generation), and whether the connection is there
UNHEARD: Known = ("unheard", -1, "unheard")
OUTSIDE, MEMBER, FORMER = 0, 1, 2  # of the latest world: this pod is none, is one, or an earlier pod of the slot was
GRACE = "grace is over"
Directive = tuple[str, int]  # ("world" | "regroup", generation)


class Agent(NamedTuple):
    """One slot: the pod of one replica index. A dead pod is replaced by a new one."""

    alive: bool = True
    dead_seen: bool = False  # the operator knows that this pod has ended
    place: int = OUTSIDE
    older: tuple[int, ...] = ()  # earlier worlds it was in that could still train
    phase: str = READY
    generation: int = 0
    connected: bool = True
    cut: bool = False  # partitioned: it cannot connect
    asleep: bool = False  # paused: it does nothing; what it is told waits in its connection
    up: bool = False  # something to say is on its way
    known: Known = (READY, 0, HERE)
    told: Directive | tuple[()] = ()  # what the hub says to it, again after each reconnect
    next: Directive | tuple[()] = ()  # what it is told when the generation has been announced
    down: tuple[Directive, ...] = ()  # on its way to the agent
    holds: Directive | tuple[()] = ()  # the latest that the agent has heard
    promised: bool = False  # told of a world that is not persisted yet: a mistake


class State(NamedTuple):
    agents: tuple[Agent, ...]
    generation: int = 0  # the latest that was persisted
    up: bool = True
    grace: bool = False  # agents its agent has not connected since the operator started may still come
    announcing: bool = False  # persisted, and not told yet
    unwritten: bool = False  # told before it was persisted: a mistake
    faults: int = 0


class View(NamedTuple):
    """The operator's input for a decision."""

    generation: int
    agents: tuple[tuple[int, bool, Known], ...]  # place, whether its pod is seen to have ended, what is known
    grace: bool
    min: int
    wanted: int


class Seat(NamedTuple):
    """An agent's input for a decision."""

    phase: str
    generation: int
    holds: Directive | tuple[()]


class Decided(NamedTuple):
    kind: str  # keep, regroup, form, wait
    told: tuple[tuple[int, Directive], ...]  # by slot
    world: tuple[int, ...] = ()  # slots


class Rules(NamedTuple):
    """The protocol, and possible mistakes in it."""

    min: int = 1
    wanted: int = 3
    fault_budget: int = 2
    persist_first: bool = True  # else: announce before persist
    wait_for_stop: bool = True  # else: form while members of the old world still run
    fence: bool = True  # else: nobody tells those outside the world to stop
    eager: bool = False  # the operator decides at once after each event: fewer orders, far fewer states
    settle: bool = False  # a mistake: grow a world while its members may still be starting in it
    doubt: bool = True  # else: a world of newcomers is formed while an old member may train on alone
    proof: bool = True  # else: a member that is ready and has not started counts as stopped


# --- the rules -----------------------------------------------------------------------------------------------


def stand(view: View, slot: int) -> str:
    """The state of a member with respect to the current generation."""
    place, ended, (phase, generation, away) = view.agents[slot]
    if place == FORMER or ended:
        return "lost"
    if is_away(away):
        ran = phase == "unheard" or (phase == RUNNING and generation == view.generation)
        if ran and all(is_away(k[2]) for _, _, k in view.agents):
            return "suspect"
        young = away == YOUNG or (phase == "unheard" and view.grace)
        return "suspect" if young else "lost"
    if generation >= view.generation:
        return {RUNNING: "running", READY: "stopped", STOPPING: "stopping"}[phase]
    return "starting"


def is_away(away: str) -> bool:
    return away not in (HERE, MUTE)


def give_up_mute(view: View, health: dict[int, str]) -> dict[int, str]:
    """Members that do not answer, while the others wait for them or have stopped, are lost."""
    mute = {s for s, h in health.items() if view.agents[s][2][2] == MUTE and h in ("running", "stopping")}
    rest = {health[s] for s in health if s not in mute}
    if rest & {"running", "stopping", "stopped"} and not rest & {"starting", "suspect"}:
        return health | dict.fromkeys(mute, "lost")
    return health


def is_out(view: View, slot: int) -> bool:
    """Whether it will never train in the current generation, now or later."""
    place, ended, (phase, generation, _) = view.agents[slot]
    return place == FORMER or ended or (phase == READY and generation >= view.generation)


def decide(view: View, rules: Rules) -> Decided:
    health = {slot: stand(view, slot) for slot, (place, _, _) in enumerate(view.agents) if place != OUTSIDE}
    health = give_up_mute(view, health)
    if not health:
        return _form(view, rules, health)
    if not {"stopped", "stopping", "lost"}.isdisjoint(health.values()):
        for slot, s in health.items():
            if s == "suspect" and view.agents[slot][2] != UNHEARD:
                health[slot] = "lost"
        return _regroup(view, rules, health)
    grown = min(len(health) + len(_newcomers(view)), view.wanted)
    settled = rules.settle or "starting" not in health.values()
    if settled and "suspect" not in health.values() and grown > len(health):
        return _regroup(view, rules, health)
    told: dict[int, Directive] = {}
    for slot in health:
        phase, generation, away = view.agents[slot][2]
        if not is_away(away):
            late = generation < view.generation and phase != READY
            told[slot] = ("regroup", generation) if late else ("world", view.generation)
    return Decided("keep", _sorted(told | _fence(view, rules, health)))


def _regroup(view: View, rules: Rules, health: dict[int, str]) -> Decided:
    if rules.wait_for_stop and any(_has_to_stop(view, rules, slot, s) for slot, s in health.items()):
        return Decided("regroup", _sorted(_end(view, health) | _fence(view, rules, health)))
    return _form(view, rules, health)


def _end(view: View, slots: dict[int, str] | list[int]) -> dict[int, Directive]:
    return {
        slot: ("regroup", view.generation)
        for slot in slots
        if view.agents[slot][0] == MEMBER and not is_away(view.agents[slot][2][2])
    }


def _has_to_stop(view: View, rules: Rules, slot: int, health: str) -> bool:
    if health == "starting" and not rules.proof:
        return view.agents[slot][2][0] != READY
    return health in ("running", "starting", "stopping", "suspect")


def _form(view: View, rules: Rules, health: dict[int, str]) -> Decided:
    alive = ("stopped",) if rules.proof else ("stopped", "starting")
    survivors = [slot for slot, s in health.items() if s in alive and view.agents[slot][2][0] == READY]
    chosen = (survivors + _newcomers(view))[: view.wanted]
    doubtful = [slot for slot in health if not is_out(view, slot)] if rules.doubt else []
    if len(chosen) < view.min or (doubtful and not survivors):
        return Decided("wait", _sorted(_fence(view, rules, {}) | _end(view, doubtful)))
    told: dict[int, Directive] = dict.fromkeys(chosen, ("world", view.generation + 1))
    fenced = _fence(view, rules, dict.fromkeys(chosen, ""), view.generation + 1)
    return Decided("form", _sorted(fenced | told), tuple(chosen))


def _newcomers(view: View) -> list[int]:
    return [
        slot
        for slot, (place, ended, (phase, _, away)) in enumerate(view.agents)
        if place != MEMBER and not ended and not is_away(away) and phase == READY
    ]


def _fence(view: View, rules: Rules, inside: dict[int, str], generation: int | None = None) -> dict[int, Directive]:
    if not rules.fence:
        return {}
    return {
        slot: ("regroup", view.generation if generation is None else generation)
        for slot, (place, _, (phase, _, away)) in enumerate(view.agents)
        if not (slot in inside and (place == MEMBER or generation is not None))
        and not is_away(away)
        and phase in (RUNNING, STOPPING)
    }


def _sorted(told: dict[int, Directive]) -> tuple[tuple[int, Directive], ...]:
    return tuple(sorted(told.items()))


# --- everything that can happen ------------------------------------------------------------------------------


def view_of(state: State, rules: Rules) -> View:
    agents = tuple((a.place, a.dead_seen, a.known) for a in state.agents)
    return View(state.generation, agents, state.grace, rules.min, rules.wanted)


def seat_of(agent: Agent) -> Seat:
    return Seat(agent.phase, agent.generation, agent.holds)


def obey(seat: Seat) -> Seat:
    """The agent after it has executed and acknowledged its directive."""
    agent = Agent(phase=seat.phase, generation=seat.generation, holds=seat.holds)
    return next((seat_of(after) for _, after in _obey(agent)), seat)


def successors(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """(event, resulting state)"""
    decided = list(_operator_steps(state, rules))
    yield from decided
    if rules.eager and state.up and any(what != GRACE for what, _ in decided):
        if state.faults < rules.fault_budget:
            yield "operator dies", _crash(state._replace(faults=state.faults + 1))
        return
    for slot, agent in enumerate(state.agents):
        for what, after in _agent_steps(state, agent):
            yield f"{what} {slot}", _with(state, slot, after)
    if state.faults < rules.fault_budget:
        yield from _faults(state._replace(faults=state.faults + 1))


def _operator_steps(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    if not state.up:
        yield "operator starts", state._replace(up=True, grace=True)
        return
    if state.announcing:
        told = tuple((slot, a.next) for slot, a in enumerate(state.agents) if a.next)
        agents = tuple(a._replace(next=()) for a in state.agents)
        yield "announce", _direct(state._replace(announcing=False, agents=agents), told)
        return
    if state.unwritten:
        chosen = [slot for slot, a in enumerate(state.agents) if a.promised]
        agents = tuple(a._replace(promised=False) for a in state.agents)
        yield "persist", _persist(state._replace(unwritten=False, agents=agents), chosen)
        return
    decided = decide(view_of(state, rules), rules)
    if decided.kind != "form":
        after = _direct(state, decided.told)
        if after != state:
            yield decided.kind, after
    elif rules.persist_first:
        persisted, told_by_slot = _persist(state, decided.world), dict(decided.told)
        agents = tuple(a._replace(next=told_by_slot.get(slot, ())) for slot, a in enumerate(persisted.agents))
        yield "persist", persisted._replace(agents=agents, announcing=True)
    else:  # the write is lost if the operator dies now
        after = _direct(state, decided.told)
        agents = tuple(a._replace(promised=slot in decided.world) for slot, a in enumerate(after.agents))
        yield "told before persist", after._replace(agents=agents, unwritten=True)
    # Those that can come back do so within the grace; who does not is called cut off, and that is a fault.
    if state.grace and all(a.connected or a.cut or a.asleep or not a.alive for a in state.agents):
        yield GRACE, state._replace(grace=False)


def _persist(state: State, chosen: tuple[int, ...] | list[int]) -> State:
    """The next generation is in the status; the one before is an older world from now on."""
    could = all(a.place != FORMER for a in state.agents)  # a world that misses a pod never trains again
    agents = tuple(
        a._replace(
            older=(*a.older, state.generation) if a.place == MEMBER and could else a.older,
            place=MEMBER if slot in chosen else OUTSIDE,
        )
        for slot, a in enumerate(state.agents)
    )
    return state._replace(generation=state.generation + 1, agents=agents)


def _direct(state: State, told: tuple[tuple[int, Directive], ...]) -> State:
    """What holds now, by slot; for a slot that is not named, nothing does."""
    named = dict(told)
    agents = []
    for slot, agent in enumerate(state.agents):
        directive = named.get(slot, ())
        if agent.told != directive:
            down = (*agent.down, directive) if agent.connected and directive else agent.down
            agent = agent._replace(told=directive, down=down)  # noqa: PLW2901
        agents.append(agent)
    return state._replace(agents=tuple(agents))


def _agent_steps(state: State, agent: Agent) -> Iterator[tuple[str, Agent]]:
    if not agent.alive:
        if not agent.dead_seen:
            yield "end is seen", agent._replace(dead_seen=True, known=(*agent.known[:2], OLD))
        elif state.up and not state.announcing:  # its successor
            place = FORMER if agent.place != OUTSIDE else OUTSIDE
            yield "new pod", Agent(place=place, connected=False, known=UNHEARD)
        return
    if agent.asleep:
        yield "wakes", agent._replace(asleep=False, up=agent.connected)
        if agent.known[2] == MUTE:
            cut = agent._replace(connected=False, up=False, down=(), asleep=False, cut=True)
            yield "times out", cut._replace(known=(*agent.known[:2], SILENT))
        return
    if agent.up and agent.connected:
        yield "heard", agent._replace(up=False, known=(agent.phase, agent.generation, HERE))
    if agent.down:
        yield "told", agent._replace(down=agent.down[1:], holds=agent.down[0])
    yield from _obey(agent)
    if agent.phase == STOPPING:
        yield "stopped", agent._replace(phase=READY, up=agent.connected)
    if agent.cut:
        yield "healed", agent._replace(cut=False)
    elif not agent.connected and state.up:
        known, down = (agent.phase, agent.generation, HERE), (agent.told,) if agent.told else ()
        yield "connects", agent._replace(connected=True, up=False, known=known, down=down)
    if agent.known[2] == YOUNG:
        yield "patience is over", agent._replace(known=(*agent.known[:2], OLD))


def _obey(agent: Agent) -> Iterator[tuple[str, Agent]]:
    if not agent.holds:
        return
    action, generation = agent.holds
    if agent.phase == READY and generation > agent.generation:
        phase, what = (RUNNING, "starts") if action == "world" else (READY, "gives up")
        yield what, agent._replace(phase=phase, generation=generation, up=agent.connected)
    if agent.phase == RUNNING and agent.generation < generation + (action == "regroup"):
        yield "stops", agent._replace(phase=STOPPING, up=agent.connected)


def _faults(state: State) -> Iterator[tuple[str, State]]:
    if state.up:
        yield "operator dies", _crash(state)
    for slot, agent in enumerate(state.agents):
        if not agent.alive:
            continue
        lost = agent._replace(connected=False, up=False, down=())
        young = (*agent.known[:2], YOUNG) if not agent.known[2] else agent.known
        yield f"pod dies {slot}", _with(state, slot, lost._replace(alive=False, known=young))
        if agent.connected:
            yield f"connection breaks {slot}", _with(state, slot, lost._replace(known=young))
            if not agent.asleep and agent.known[2] == HERE:
                asleep = agent._replace(asleep=True, known=(*agent.known[:2], MUTE))
                yield f"falls asleep {slot}", _with(state, slot, asleep)
            yield f"cut off {slot}", _with(state, slot, lost._replace(known=(*agent.known[:2], SILENT), cut=True))


def _crash(state: State) -> State:
    """Nothing in memory is left: what agents said, what they were told, what was about to be announced."""
    agents = tuple(
        a._replace(connected=False, up=False, down=(), known=UNHEARD, told=(), next=(), promised=False)
        for a in state.agents
    )
    return state._replace(up=False, grace=False, announcing=False, unwritten=False, agents=agents)


def _with(state: State, slot: int, agent: Agent) -> State:
    return state._replace(agents=(*state.agents[:slot], agent, *state.agents[slot + 1 :]))


# --- what must hold ------------------------------------------------------------------------------------------


def _trains(agents: list[Agent], generation: int) -> bool:
    return bool(agents) and all(a.alive and a.phase == RUNNING and a.generation == generation for a in agents)


def whole_worlds(state: State) -> list[int]:
    """The generations that all of their members run."""
    older = {n for a in state.agents for n in a.older}
    found = [n for n in sorted(older) if _trains([a for a in state.agents if n in a.older], n)]
    members = [a for a in state.agents if a.place == MEMBER]
    if all(a.place != FORMER for a in state.agents) and _trains(members, state.generation):
        found.append(state.generation)
    return found


def runs_unwritten(state: State) -> bool:
    """Whether an agent runs a generation that was never persisted, or without being a member of the latest one."""
    return any(
        a.alive
        and a.phase == RUNNING
        and (a.generation > state.generation or (a.generation == state.generation and a.place != MEMBER))
        for a in state.agents
    )


def is_goal(state: State, rules: Rules) -> bool:
    """Whether all train in one world of the wanted size, and the hub knows."""
    members = [a for a in state.agents if a.place == MEMBER]
    return (
        state.up
        and len(members) == min(rules.wanted, len(state.agents))
        and _trains(members, state.generation)
        and all(a.known == (a.phase, a.generation, HERE) for a in state.agents)
    )


def start(agents: int, *, running: bool = False, late: bool = False) -> State:
    """All are ready; or all already run generation 1, to skip the initial orders. One pod may arrive late."""
    one = Agent()
    if running:
        told = ("world", 1)
        one = Agent(place=MEMBER, phase=RUNNING, generation=1, known=(RUNNING, 1, HERE), told=told, holds=told)
    last = Agent(connected=False, known=UNHEARD) if late else one
    return State((*(one,) * (agents - 1), last), 1 if running else 0)
