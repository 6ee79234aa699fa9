"""What the hub keeps of long messages is bounded, however many pods send them, and a namespace gets half of it."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from controller.hub_fixture import FAST, JOB, AgentClient, RunningHub, connected, eventually, running_hub, seated
from elasticjob_operator import shares
from elasticjob_operator.api import wire
from elasticjob_operator.hub import auth, connection

pytestmark = pytest.mark.timeout(60)
LONG = 20_000
ROOM = 100_000
SETTINGS = replace(FAST, kept_bytes=2_000, max_kept_bytes=ROOM)
EVIL = 8  # pods; five of them would fill all of the room


async def by_namespace(token: str, address: str) -> auth.Identity | auth.Refusal:
    """Authenticates tokens of the form `<namespace>/<pod>`."""
    namespace, _, pod = token.partition("/")
    return auth.Identity(namespace, pod, f"uid-{namespace}-{pod}", "job")


def long_progress(size: int = LONG) -> wire.Progress:
    return wire.Progress(generation=1, metrics={f"{number:0250}": 1.0 for number in range(size // 640)})


def long_state(size: int = LONG) -> wire.AgentState:
    links = tuple(wire.Link(uid=f"{number:0250}", problem="x" * 256) for number in range(size // 570))
    return wire.AgentState(phase=wire.AgentPhase.STARTING, preflight=wire.Preflight(port=1, links=links))


async def send_progress(client: AgentClient, size: int = LONG) -> None:
    # With spaces, it is as long as this says: what a pod sends is up to it.
    text = wire.AGENT_MESSAGE.dump_json(long_progress(size), by_alias=True, exclude_none=True).decode()
    await client.ws.send_str(text.ljust(size))


async def send_state(client: AgentClient, size: int = LONG) -> None:
    text = wire.AGENT_MESSAGE.dump_json(wire.State(state=long_state(size)), by_alias=True, exclude_none=True).decode()
    await client.ws.send_str(text.ljust(size))


def count_kept(
    running: RunningHub, namespace: str, has: Callable[[wire.AgentState, wire.Progress | None], bool]
) -> int:
    agents = running.hub.agents((namespace, "job")).values()
    return sum(has(agent.state, agent.progress) for agent in agents)


@pytest.mark.parametrize(
    ("send", "has"),
    [
        pytest.param(send_progress, lambda state, progress: progress is not None, id="progress"),
        pytest.param(send_state, lambda state, progress: state.preflight is not None, id="state"),
    ],
)
async def test_long_messages_of_one_namespace_leave_room_for_those_of_others(
    send: Callable[[AgentClient], Awaitable[None]],
    has: Callable[[wire.AgentState, wire.Progress | None], bool],
) -> None:
    async with running_hub(SETTINGS, authenticate=by_namespace) as running, contextlib.AsyncExitStack() as stack:
        evil = [await stack.enter_async_context(seated(running, f"pod-{i}", job="evil")) for i in range(EVIL)]
        for client in evil:
            await send(client)
        await eventually(lambda: running.hub.counts["closed:crowded"] + count_kept(running, "evil", has) >= EVIL)
        assert count_kept(running, "evil", has) == 2, "half of the room, and not one more"
        nice = await stack.enter_async_context(seated(running, "pod-0", job="nice"))
        await send(nice)
        await eventually(lambda: count_kept(running, "nice", has) == 1)
        # A short message takes the place of the long one; what a pod had is free when it is gone.
        await evil[0].state(phase="ready")
        await evil[0].say(wire.Progress(generation=1))
        running.hub.forget_pods(("evil", "job"), but={"uid-evil-pod-0"})
        await eventually(lambda: running.hub.places["kept"][0] < LONG)
        running.hub.forget(("nice", "job"))
        await eventually(lambda: running.hub.places["kept"][0] == 0)


async def test_a_hello_without_room_takes_no_place() -> None:
    async with running_hub(replace(SETTINGS, max_kept_bytes=1), authenticate=by_namespace) as running:
        for _ in range(3):
            async with connected(running, "pod-0", job="evil") as client:
                await client.say(wire.Hello(agent="a", state=long_state()))
                error, code = await client.refusal()
                assert (error, code) == (None, connection.CLOSE_TRY_LATER)
        await eventually(lambda: running.hub.places["agents"][0] == 0)
        async with seated(running, "pod-0", job="evil"):
            assert running.hub.places["agents"][0] == 1


async def test_the_cause_of_a_failure_is_known_where_its_traceback_has_no_room() -> None:
    failure = wire.Failure(generation=1, rank=3, message="it broke", traceback="x" * 16_000)
    state = wire.AgentState(phase=wire.AgentPhase.STOPPING, generation=1, failure=failure)
    async with (
        running_hub(replace(SETTINGS, max_kept_bytes=1), authenticate=by_namespace) as running,
        seated(running, "pod-0", job="nice") as client,
    ):
        await client.say(wire.State(state=state))
        await eventually(lambda: count_kept(running, "nice", lambda kept, _: kept.failure is not None) == 1)
        (agent,) = running.hub.agents(("nice", "job")).values()
        assert agent.state == state.model_copy(update={"failure": failure.model_copy(update={"traceback": None})})


def test_a_group_gets_as_much_as_it_leaves_free() -> None:
    room = shares.Room(100)
    assert not room.enter("a", 51) and len(room) == 0
    assert room.enter("a", 50) and not room.enter("a", 1)
    assert not room.enter("b", 26) and room.enter("b", 25)
    room.leave("a", 50)
    assert len(room) == 25 and room.enter("a", 38) and not room.enter("a", 1)


async def test_of_a_world_nothing_is_kept_when_its_pods_are_gone() -> None:
    """Its job may stay for ever, and be one of thousands: a quota for pods does not limit how many have had some."""
    async with running_hub(replace(FAST, timeout_min=60.0)) as running:
        members = (wire.Member(rank=0, pod="digits-worker-0", nproc=1),)
        world = wire.World(generation=1, rank=0, members=members, store=wire.Store(address="a", port=1))
        kept = weakref.ref(world)
        async with seated(running, heartbeat=None) as client:
            running.hub.direct(JOB, {"uid-digits-worker-0": world})
            assert isinstance(await client.directive(), wire.World)
            running.hub.direct(JOB, {})
            running.hub.forget_pods(JOB, but=())
            del world
        await eventually(lambda: gc.collect() >= 0 and kept() is None)
