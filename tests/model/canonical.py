"""One canonical state for all states that differ only in names, which reduces their number without losing any.

Slots are interchangeable, so the agents are sorted. Only the order of generations matters, so they are renumbered.
State that can never matter again is dropped: the state of dead pods, worlds that lost a member for good, executed
directives.
"""

from __future__ import annotations

from model.regroup_model import READY, RUNNING, Agent, State


def canonical(state: State) -> State:
    lost = {n for a in state.agents for n in a.older if _is_out(a, n)}
    agents = [_tidy(a, lost) for a in state.agents]
    numbers = {0, state.generation}
    for a in agents:
        numbers.add(a.generation)
        numbers.update(a.older)
        numbers.update(d[1] for d in (a.told, a.next, a.holds, *a.down) if d)
        if a.known[1] > 0:
            numbers.add(a.known[1])
    if len(numbers) <= max(numbers):
        new = {old: i for i, old in enumerate(sorted(numbers))}
        new[-1] = -1
        agents = [_renumber(a, new) for a in agents]
        state = state._replace(generation=new[state.generation])
    return state._replace(agents=tuple(sorted(agents)))


def _is_out(agent: Agent, generation: int) -> bool:
    """It will never again run in this generation."""
    running = agent.phase == RUNNING and agent.generation == generation
    return not agent.alive or (agent.generation >= generation and not running)


def _tidy(agent: Agent, lost: set[int]) -> Agent:
    older = tuple(n for n in agent.older if n not in lost) if agent.older else ()
    if not agent.alive:
        known = agent.known if not agent.dead_seen else (READY, 0, "old")
        return Agent(alive=False, dead_seen=agent.dead_seen, place=agent.place, connected=False, known=known)
    holds = agent.holds
    if holds and holds[1] < agent.generation + (holds[0] == "world" or agent.phase != RUNNING):
        holds = ()
    up = agent.up and agent.known != (agent.phase, agent.generation, "")
    return agent._replace(older=older, holds=holds, up=up)


def _renumber(a: Agent, new: dict[int, int]) -> Agent:
    return a._replace(
        generation=new[a.generation],
        older=tuple(new[n] for n in a.older),
        known=(a.known[0], new[a.known[1]], a.known[2]),
        told=(a.told[0], new[a.told[1]]) if a.told else (),
        next=(a.next[0], new[a.next[1]]) if a.next else (),
        holds=(a.holds[0], new[a.holds[1]]) if a.holds else (),
        down=tuple((action, new[n]) for action, n in a.down),
    )
