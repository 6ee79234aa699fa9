"""The regroup protocol as an explicit-state model: operator, hub, agents, connections, crashes. Pure.

Time is left out: patience that may end, ends at some point, and every order of events is tried. A state is a value;
`successors` gives everything that can happen next. `decide` says the protocol's rules once more, in few words and
without looking at the operator's own code; `replay` holds the two together.

What is left out on purpose: sizes with steps, spares, success, drains (an agent that leaves is one that stops), budget,
and deadlines for members that do not stop: a connected agent of the model always stops in the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

READY, RUNNING, STOPPING = "ready", "running", "stopping"
# What the hub knows of an agent: its (phase, generation) while it is connected, else one of these.
UNHEARD, YOUNG, OLD, SILENT = ("unheard", -1), ("young", -1), ("old", -1), ("silent", -1)
Known = tuple[str, int]
GRACE = "grace is over"
Directive = tuple[str, int]  # ("world" | "regroup", generation)


class Agent(NamedTuple):
    """One slot: the pod of one replica index. A pod that died is followed by a new one with another number."""

    life: int = 0
    alive: bool = True
    dead_seen: bool = False  # the operator knows that this pod has ended
    phase: str = READY
    generation: int = 0
    connected: bool = True
    cut: bool = False  # partitioned: it cannot connect
    up: bool = False  # something to say is on its way
    known: Known = (READY, 0)
    told: Directive | None = None  # what the hub says to it, again after each reconnect
    down: tuple[Directive, ...] = ()  # on its way to the agent
    holds: Directive | None = None  # the latest that the agent has heard


Member = tuple[int, int]  # slot, life


class State(NamedTuple):
    agents: tuple[Agent, ...]
    worlds: tuple[tuple[Member, ...], ...] = ()  # persisted: generation n is the n-th
    up: bool = True
    grace: bool = False  # agents not heard of since the operator started may still come
    announce: tuple[tuple[int, Directive], ...] | None = None  # persisted, and not told yet
    unwritten: tuple[Member, ...] | None = None  # told before it was persisted: a mistake
    faults: int = 0


class View(NamedTuple):
    """What the operator decides on."""

    world: tuple[Member, ...]
    generation: int
    agents: tuple[tuple[int, bool, Known], ...]  # life, whether its pod is seen to have ended, what is known
    grace: bool
    min: int
    wanted: int


class Decided(NamedTuple):
    kind: str  # keep, regroup, form, wait
    told: tuple[tuple[int, Directive], ...]  # by slot
    world: tuple[Member, ...] = ()


class Rules(NamedTuple):
    """The protocol, and the mistakes one could make in it."""

    min: int = 1
    wanted: int = 3
    fault_budget: int = 2
    persist_first: bool = True  # else: announce before persist
    wait_for_stop: bool = True  # else: form while members of the old world still run
    fence: bool = True  # else: nobody tells those outside the world to stop
    eager: bool = False  # the operator decides at once after each event: fewer orders, far fewer states
    settle: bool = False  # a mistake: grow a world while its members may still be starting in it
    doubt: bool = True  # else: a world of newcomers is formed while an old member may train on alone


def is_connected(known: Known) -> bool:
    return known[1] >= 0


# --- the rules -----------------------------------------------------------------------------------------------


def stand(view: View, member: Member) -> str:
    """How one member stands towards the present generation."""
    slot, life = member
    now_life, ended, known = view.agents[slot]
    if now_life != life or ended:
        return "lost"
    if not is_connected(known):
        if not any(is_connected(k) for _, _, k in view.agents):
            return "suspect"
        young = known == YOUNG or (known == UNHEARD and view.grace)
        return "suspect" if young else "lost"
    phase, generation = known
    if generation >= view.generation:
        return {RUNNING: "running", READY: "stopped", STOPPING: "stopping"}[phase]
    return "starting"


def decide(view: View, rules: Rules) -> Decided:
    standing = {m: stand(view, m) for m in view.world}
    if not view.world:
        return _form(view, rules, standing)
    broken = any(s in ("stopped", "stopping", "lost") for s in standing.values())
    if broken:
        for member, s in standing.items():
            if s == "suspect" and view.agents[member[0]][2] != UNHEARD:
                standing[member] = "lost"
        return _regroup(view, rules, standing)
    grown = min(len(view.world) + len(_newcomers(view)), view.wanted)
    settled = rules.settle or "starting" not in standing.values()
    if settled and "suspect" not in standing.values() and grown > len(view.world):
        return _regroup(view, rules, standing)
    told = {}
    for slot, _ in view.world:
        phase, generation = view.agents[slot][2]
        if generation < 0:
            continue
        late = generation < view.generation and phase != READY
        told[slot] = ("regroup", generation) if late else ("world", view.generation)
    return Decided("keep", _sorted(told | _fence(view, rules, view.world)))


def _regroup(view: View, rules: Rules, standing: dict[Member, str]) -> Decided:
    if rules.wait_for_stop and any(_has_to_stop(view, m, s) for m, s in standing.items()):
        told = {slot: ("regroup", view.generation) for slot, _ in view.world if is_connected(view.agents[slot][2])}
        told = {slot: d for slot, d in told.items() if (slot, view.agents[slot][0]) in view.world}
        return Decided("regroup", _sorted(told | _fence(view, rules, view.world)))
    return _form(view, rules, standing)


def _has_to_stop(view: View, member: Member, standing: str) -> bool:
    if standing == "starting":
        return view.agents[member[0]][2][0] != READY
    return standing in ("running", "stopping", "suspect")


def _form(view: View, rules: Rules, standing: dict[Member, str]) -> Decided:
    survivors = [m for m, s in standing.items() if s in ("stopped", "starting") and view.agents[m[0]][2][0] == READY]
    chosen = (survivors + _newcomers(view))[: view.wanted]
    doubtful = rules.doubt and any(
        view.agents[slot][:2] == (life, False) and not is_connected(view.agents[slot][2]) for slot, life in view.world
    )
    if len(chosen) < view.min or (doubtful and not survivors):
        return Decided("wait", _sorted(_fence(view, rules, ())))
    told = {slot: ("world", view.generation + 1) for slot, _ in chosen}
    fenced = _fence(view, rules, tuple(chosen), view.generation + 1)
    return Decided("form", _sorted(fenced | told), tuple(chosen))


def _newcomers(view: View) -> list[Member]:
    return [
        (slot, life)
        for slot, (life, ended, known) in enumerate(view.agents)
        if (slot, life) not in view.world and not ended and known[0] == READY
    ]


def _fence(view: View, rules: Rules, inside: tuple[Member, ...], generation: int | None = None) -> dict[int, Directive]:
    if not rules.fence:
        return {}
    return {
        slot: ("regroup", view.generation if generation is None else generation)
        for slot, (life, _, known) in enumerate(view.agents)
        if (slot, life) not in inside and known[0] in (RUNNING, STOPPING)
    }


def _sorted(told: dict[int, Directive]) -> tuple[tuple[int, Directive], ...]:
    return tuple(sorted(told.items()))


# --- everything that can happen ------------------------------------------------------------------------------


def view_of(state: State, rules: Rules) -> View:
    return View(
        state.worlds[-1] if state.worlds else (),
        len(state.worlds),
        tuple((a.life, a.dead_seen, a.known) for a in state.agents),
        state.grace,
        rules.min,
        rules.wanted,
    )


def successors(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """(what happens, what comes of it)"""
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
    if state.announce is not None:
        yield "announce", _direct(state._replace(announce=None), state.announce)
        return
    if state.unwritten is not None:
        yield "persist", state._replace(worlds=(*state.worlds, state.unwritten), unwritten=None)
        return
    decided = decide(view_of(state, rules), rules)
    if decided.kind == "form":
        persisted = state._replace(worlds=(*state.worlds, decided.world))
        if rules.persist_first:
            yield "persist", persisted._replace(announce=decided.told)
        else:  # the write is lost if the operator dies now
            yield "told before persist", _direct(state, decided.told)._replace(unwritten=decided.world)
    else:
        after = _direct(state, decided.told)
        if after != state:
            yield decided.kind, after
    # Those that can come back do so within the grace; who does not is called cut off, and that is a fault.
    if state.grace and all(a.connected or a.cut or not a.alive for a in state.agents):
        yield GRACE, state._replace(grace=False)


def _direct(state: State, told: tuple[tuple[int, Directive], ...]) -> State:
    """What holds now, by slot; for a slot that is not named, nothing does."""
    named = dict(told)
    for slot, agent in enumerate(state.agents):
        directive = named.get(slot)
        if directive is None:
            if agent.told is not None:
                state = _with(state, slot, agent._replace(told=None))
            continue
        if agent.told != directive:
            down = (*agent.down, directive) if agent.connected else ()
            state = _with(state, slot, agent._replace(told=directive, down=down))
    return state


def _agent_steps(state: State, agent: Agent) -> Iterator[tuple[str, Agent]]:
    if not agent.alive:
        if not agent.dead_seen:
            yield "end is seen", agent._replace(dead_seen=True, known=OLD)
        elif state.up and state.announce is None:  # its successor
            yield "new pod", Agent(life=agent.life + 1, connected=False, known=UNHEARD)
        return
    if agent.up and agent.connected:
        yield "heard", agent._replace(up=False, known=(agent.phase, agent.generation))
    if agent.down:
        yield "told", agent._replace(down=agent.down[1:], holds=agent.down[0])
    if _may_start(agent):
        yield (
            "starts",
            agent._replace(phase=RUNNING, generation=agent.holds[1] if agent.holds else 0, up=agent.connected),
        )
    if _is_over(agent):
        yield "stops", agent._replace(phase=STOPPING, up=agent.connected)
    if agent.phase == STOPPING:
        yield "stopped", agent._replace(phase=READY, up=agent.connected)
    if agent.cut:
        yield "healed", agent._replace(cut=False)
    elif not agent.connected and state.up:
        down = (agent.told,) if agent.told else ()
        yield "connects", agent._replace(connected=True, up=False, known=(agent.phase, agent.generation), down=down)
    if agent.known == YOUNG:
        yield "patience is over", agent._replace(known=OLD)


def _may_start(agent: Agent) -> bool:
    holds = agent.holds
    return agent.phase == READY and holds is not None and holds[0] == "world" and holds[1] > agent.generation


def _is_over(agent: Agent) -> bool:
    if agent.phase != RUNNING or agent.holds is None:
        return False
    action, generation = agent.holds
    return agent.generation <= generation if action == "regroup" else agent.generation < generation


def _faults(state: State) -> Iterator[tuple[str, State]]:
    if state.up:
        yield "operator dies", _crash(state)
    for slot, agent in enumerate(state.agents):
        if not agent.alive:
            continue
        lost = agent._replace(connected=False, up=False, down=())
        known = YOUNG if is_connected(agent.known) else agent.known
        yield f"pod dies {slot}", _with(state, slot, lost._replace(alive=False, known=known))
        if agent.connected:
            yield f"connection breaks {slot}", _with(state, slot, lost._replace(known=YOUNG))
            yield f"cut off {slot}", _with(state, slot, lost._replace(known=SILENT, cut=True))


def _crash(state: State) -> State:
    """Nothing in memory is left: what agents said, what they were told, what was about to be announced."""
    agents = tuple(a._replace(connected=False, up=False, down=(), known=UNHEARD, told=None) for a in state.agents)
    return state._replace(up=False, grace=False, announce=None, unwritten=None, agents=agents)


def _with(state: State, slot: int, agent: Agent) -> State:
    return state._replace(agents=(*state.agents[:slot], agent, *state.agents[slot + 1 :]))


# --- what must hold ------------------------------------------------------------------------------------------


def whole_worlds(state: State) -> list[int]:
    """The generations of which every member runs."""
    found = []
    for number, world in enumerate(state.worlds, 1):
        agents = [(state.agents[slot], life) for slot, life in world]
        if all(a.life == life and a.alive and a.phase == RUNNING and a.generation == number for a, life in agents):
            found.append(number)
    return found


def runs_unwritten(state: State) -> bool:
    """An agent runs in a generation that the API server has never heard of, or holds another's place in it."""
    for slot, agent in enumerate(state.agents):
        if agent.alive and agent.phase == RUNNING:
            if agent.generation > len(state.worlds):
                return True
            if (slot, agent.life) not in state.worlds[agent.generation - 1]:
                return True
    return False


def is_goal(state: State, rules: Rules) -> bool:
    """All train in one world of the wanted size, and the hub knows."""
    whole = whole_worlds(state)
    return (
        state.up
        and bool(whole)
        and whole[-1] == len(state.worlds)
        and len(state.worlds[-1]) == min(rules.wanted, len(state.agents))
        and all(a.known == (a.phase, a.generation) for a in state.agents)
    )


def start(agents: int, *, running: bool = False) -> State:
    """All are ready; or, to save the orders of the beginning, all run in generation 1 already."""
    if not running:
        return State(tuple(Agent() for _ in range(agents)))
    told = ("world", 1)
    one = Agent(phase=RUNNING, generation=1, known=(RUNNING, 1), told=told, holds=told)
    return State((one,) * agents, (tuple((slot, 0) for slot in range(agents)),))
