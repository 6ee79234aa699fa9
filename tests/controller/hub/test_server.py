"""The hub over real sockets: agents' messages arrive, and so do the operator's directives."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime

import aiohttp
import pytest

from controller.hub_fixture import FAST, JOB, AgentClient, RunningHub, connected, eventually, running_hub, seated
from elasticjob_operator.api import wire
from elasticjob_operator.hub import certificates
from elasticjob_operator.model import observe

UID = "uid-digits-worker-0"
READY = {"phase": "ready", "store": {"address": "10.0.0.1", "port": 4000}}


def world(generation: int, rank: int = 0, size: int = 1) -> wire.World:
    members = tuple(wire.Member(pod=f"digits-worker-{i}", rank=i, address=f"10.0.0.{i}") for i in range(size))
    return wire.World(
        generation=generation, rank=rank, members=members, store=wire.Store(address="10.0.0.0", port=4000)
    )


async def _report(running: RunningHub, client: AgentClient, generation: int, step: int, *, uid: str = UID) -> None:
    """Say so, and wait until the hub has heard it."""
    progress = wire.Progress(generation=generation, step=step)
    await client.say(progress)
    await eventually(lambda: running.hub.agents(JOB)[uid].progress == progress)


async def test_an_agent_is_seen_from_hello_to_its_end() -> None:
    async with running_hub() as running:
        hub = running.hub
        async with seated(running, agent="a-1") as client:
            agent = hub.agents(JOB)[UID]
            assert agent.connected and agent.pod == "digits-worker-0" and agent.agent_id == "a-1"
            assert agent.state.phase == wire.AgentPhase.STARTING
            assert running.woken == [JOB]
            await client.state(**READY)
            await eventually(lambda: hub.agents(JOB)[UID].state.phase == wire.AgentPhase.READY)
            assert hub.agents(JOB)[UID].state.store == wire.Store(address="10.0.0.1", port=4000)
            assert running.woken == [JOB, JOB]
            await client.state(**READY)
            await client.say(wire.Progress(step=7))
            await eventually(lambda: hub.agents(JOB)[UID].progress is not None)
            assert len(running.woken) == 3, "a repeated state is no news; the first progress is"
        await eventually(lambda: not hub.agents(JOB)[UID].connected)
        gone = hub.agents(JOB)[UID]
        assert gone.lost_by == "closed" and gone.state.phase == wire.AgentPhase.READY
        assert hub.connections == 0 and len(running.woken) == 4


async def test_a_directive_is_sent_once_and_again_when_it_changes() -> None:
    async with running_hub() as running, seated(running) as client:
        for _ in range(3):
            running.hub.direct(JOB, {UID: world(1)})
        assert await client.directive() == world(1)
        running.hub.direct(JOB, {UID: wire.Regroup(generation=1, reason="scale")})
        assert await client.directive() == wire.Regroup(generation=1, reason="scale")
        running.hub.direct(JOB, {UID: world(2, size=3)})
        assert await client.directive() == world(2, size=3)
        assert running.hub.counts["directives"] == 3


@pytest.mark.parametrize("sizes", [False, True], ids=["an older agent", "an agent of this version"])
async def test_an_agent_hears_of_a_world_in_the_way_that_it_understands(sizes: bool) -> None:
    members = tuple(wire.Member(pod=f"digits-worker-{i}", rank=i, nproc=2) for i in range(3))
    world = wire.World(generation=1, rank=0, members=members, store=wire.Store(address="10.0.0.1", port=4000))
    async with running_hub() as running, connected(running) as agent:
        state = wire.AgentState(phase=wire.AgentPhase.READY)
        await agent.say(wire.Hello(agent="a-1", sizes=sizes, state=state))
        assert isinstance(await agent.hear(), wire.Welcome)
        running.hub.direct(JOB, {UID: world})
        told = await agent.directive()
        assert isinstance(told, wire.World)
        assert (told.members, told.sizes) == (((), ((3, 2),)) if sizes else (members, None))


async def test_only_the_latest_directive_is_sent() -> None:
    async with running_hub() as running, seated(running) as client:
        for generation in range(1, 50):
            running.hub.direct(JOB, {UID: world(generation)})
        assert await client.directive() == world(49)


async def test_a_directive_given_before_the_agent_comes_is_not_for_an_unknown_process() -> None:
    """What was decided without knowing the agent cannot hold for it: the operator is woken and decides again."""
    async with running_hub() as running:
        running.hub.direct(JOB, {UID: world(1)})
        assert running.hub.agents(JOB) == {}
        async with seated(running) as client:
            running.hub.direct(JOB, {UID: world(2)})
            assert await client.directive() == world(2)


async def test_the_same_agent_hears_its_directive_again_after_a_reconnect() -> None:
    async with running_hub() as running:
        async with seated(running, agent="a-1") as client:
            running.hub.direct(JOB, {UID: world(1)})
            assert await client.directive() == world(1)
        async with seated(running, agent="a-1", state={"phase": "running", "generation": 1}) as client:
            assert await client.directive() == world(1)


async def test_a_new_process_in_the_pod_does_not_hear_what_was_meant_for_the_old_one() -> None:
    async with running_hub() as running:
        async with seated(running, agent="a-1") as client:
            running.hub.direct(JOB, {UID: world(1)})
            assert await client.directive() == world(1)
        async with seated(running, agent="a-2") as client:
            running.hub.direct(JOB, {UID: wire.Regroup(generation=1, reason="restarted")})
            assert await client.directive() == wire.Regroup(generation=1, reason="restarted")


async def test_progress_wakes_are_throttled_and_the_last_one_is_not_lost() -> None:
    async with running_hub() as running, seated(running) as client:
        before = len(running.woken)
        for step in range(50):
            await client.say(wire.Progress(step=step))
        await eventually(lambda: len(running.woken) == before + 2)
        progress = running.hub.agents(JOB)[UID].progress
        assert progress is not None and progress.step == 49


async def test_the_first_progress_of_a_world_wakes_its_job_at_once() -> None:
    """By it, the world trains again: until then the job loses time, and new code is on trial."""
    async with running_hub(replace(FAST, progress_wake_seconds=3600.0)) as running, seated(running) as client:
        for generation in (1, 2):
            running.hub.direct(JOB, {UID: world(generation)})
            assert await client.directive() == world(generation)
            before = len(running.woken)
            for step in (2, 3):
                await _report(running, client, generation, step)
            assert len(running.woken) == before + 1


async def test_an_agent_that_counts_worlds_by_itself_wakes_its_job_no_more_often_than_others() -> None:
    """Nor does it keep the first step of the next world from being told."""
    async with running_hub(replace(FAST, progress_wake_seconds=3600.0)) as running, seated(running) as client:
        running.hub.direct(JOB, {UID: world(1)})
        await _report(running, client, generation=1, step=1)
        before = len(running.woken)
        for generation in (2, 3, 2**40):
            await _report(running, client, generation, step=1)
        assert len(running.woken) == before
        running.hub.direct(JOB, {UID: world(2)})
        await _report(running, client, generation=2, step=2)
        assert len(running.woken) == before + 1


async def test_the_first_progress_of_a_namesake_wakes_it_at_once() -> None:
    """The job was deleted and made anew before its last pod had gone: its worlds are counted from one again."""
    async with running_hub(replace(FAST, progress_wake_seconds=3600.0)) as running:
        for pod in ("digits-worker-0", "digits-worker-1"):
            uid = f"uid-{pod}"
            async with seated(running, pod) as client:
                running.hub.forget_pods(JOB, but={uid})
                running.hub.direct(JOB, {uid: world(1)})
                before = len(running.woken)
                for step in (1, 2):
                    await _report(running, client, 1, step, uid=uid)
                assert len(running.woken) == before + 1


@pytest.mark.parametrize("again", ["a-1", "a-2"], ids=["the same process", "another process"])
async def test_a_new_connection_of_the_pod_takes_over(again: str) -> None:
    """Only another process is told to give up: one that reconnects may still read its old socket."""
    async with running_hub() as running, seated(running, agent="a-1") as old:
        async with seated(running, agent=again) as new:
            error, code = await old.refusal()
            assert code == 4409
            assert (error.code if error else "") == ("" if again == "a-1" else "replaced")
            assert running.hub.agents(JOB)[UID].connected
            running.hub.direct(JOB, {UID: world(1)})
            assert await new.directive() == world(1)
        await eventually(lambda: not running.hub.agents(JOB)[UID].connected)


async def test_a_standby_takes_nobody_and_a_deposed_leader_sends_everybody_away() -> None:
    async with running_hub(leader=False) as running:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with connected(running):
                pass
        assert refused.value.status == 503
        assert "Retry-After" not in (refused.value.headers or {}), "thousands would come back to it at once"
        running.hub.leader = True
        async with seated(running) as client:
            running.hub.leader = False
            assert await client.refusal() == (None, 1012)
        assert running.hub.connections == 0


async def test_a_stopping_hub_says_goodbye() -> None:
    async with AsyncExitStack() as stack:
        async with running_hub() as running:
            client = await stack.enter_async_context(seated(running))
            closing = asyncio.create_task(client.refusal())
            await asyncio.sleep(0)
        assert await closing == (None, 1001)


async def test_what_is_forgotten_is_gone() -> None:
    async with running_hub() as running, seated(running) as first, seated(running, "digits-worker-1") as second:
        running.hub.forget_pods(JOB, but={"uid-digits-worker-1"})
        assert await first.refusal() == (None, 1001)
        assert set(running.hub.agents(JOB)) == {"uid-digits-worker-1"}
        running.hub.forget(JOB)
        assert await second.refusal() == (None, 1001)
        assert running.hub.agents(JOB) == {} and running.hub.connections == 0
        running.hub.forget(JOB)


async def test_pings_are_answered_and_are_a_sign_of_life() -> None:
    """Two timeouts long the agent says nothing but pings."""
    async with running_hub() as running, seated(running, heartbeat=None) as client:
        loop = asyncio.get_running_loop()
        until = loop.time() + 2 * FAST.timeout_min
        while loop.time() < until:
            await client.ws.ping()
            with pytest.raises(TimeoutError):
                await client.ws.receive(timeout=FAST.timeout_min / 5)
        assert running.hub.agents(JOB)[UID].connected


async def test_silence_is_a_loss_without_a_closed_socket() -> None:
    async with running_hub() as running, seated(running, heartbeat=None):
        await eventually(lambda: not running.hub.agents(JOB)[UID].connected)
        assert running.hub.agents(JOB)[UID].lost_by == "silent"
        assert running.hub.counts["lost:silent"] == 1


RUNS = {"phase": "running", "generation": 1}


async def test_a_quiet_agent_is_asked_when_others_wait_and_is_mute_if_it_does_not_answer() -> None:
    """Both clients answer pings only while they read."""
    patient = replace(FAST, timeout_min=2.0)
    async with (
        running_hub(patient) as running,
        seated(running, heartbeat=None, state=RUNS) as waiting,
        seated(running, "digits-worker-1", heartbeat=None, state=RUNS) as other,
    ):
        hub, peer = running.hub, "uid-digits-worker-1"
        reading = asyncio.create_task(other.ws.receive())
        await waiting.state(**RUNS, blocked=True)
        keeping = asyncio.create_task(ping_for_ever(waiting))
        await eventually(lambda: hub.counts["asked"] >= 2)
        assert not hub.agents(JOB)[peer].mute, "it answers"
        reading.cancel()
        await eventually(lambda: hub.agents(JOB)[peer].mute)
        assert hub.agents(JOB)[peer].connected, "it is the judgement's to give it up"
        assert JOB in running.woken
        reading = asyncio.create_task(other.ws.receive())
        await eventually(lambda: not hub.agents(JOB)[peer].mute)
        for task in (keeping, reading):
            task.cancel()


async def test_nobody_is_mute_because_the_hub_was_held_up() -> None:
    patient = replace(FAST, timeout_min=2.0)
    async with (
        running_hub(patient) as running,
        seated(running, heartbeat=None, state=RUNS) as waiting,
        seated(running, "digits-worker-1", heartbeat=None, state=RUNS) as other,
    ):
        hub, peer = running.hub, "uid-digits-worker-1"
        await waiting.state(**RUNS, blocked=True)
        await eventually(lambda: hub.counts["asked"] >= 1)
        time.sleep(1.5)  # noqa: ASYNC251 - the whole process stands still
        reading = asyncio.create_task(other.ws.receive())
        assert not hub.agents(JOB)[peer].mute
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert not hub.agents(JOB)[peer].mute
        reading.cancel()


async def ping_for_ever(client: AgentClient) -> None:
    while True:
        await client.ws.ping()
        await asyncio.sleep(0.05)


async def test_nobody_is_asked_while_the_steps_go_on() -> None:
    async with running_hub() as running, seated(running, heartbeat=None, state=RUNS):
        seen: list[observe.Agent] = []
        while not seen or seen[-1].connected:
            seen.append(running.hub.agents(JOB)[UID])
            await asyncio.sleep(0.01)
        assert running.hub.counts["asked"] == 0
        assert not any(agent.mute for agent in seen), "silent, and nobody has asked it"


async def greet(running: RunningHub, pod: str) -> wire.Welcome:
    async with connected(running, pod) as client:
        await client.hello()
        welcome = await client.hear()
        assert isinstance(welcome, wire.Welcome)
        return welcome


async def test_a_newcomer_hears_whether_the_others_keep_their_memory() -> None:
    async with running_hub() as running:
        assert not (await greet(running, "digits-worker-8")).in_process, "there are no others"
        async with seated(running, "digits-worker-0") as one:
            for state in (READY, {"phase": "running", "generation": 1}):
                await one.state(**state, in_process=True)
            await eventually(lambda: running.hub.agents(JOB)[UID].state.generation == 1)
            assert (await greet(running, "digits-worker-8")).in_process
            async with seated(running, "digits-worker-1", state={"phase": "running", "generation": 1}):
                assert not (await greet(running, "digits-worker-8")).in_process, "not all of them do"


async def test_agents_that_ask_get_the_key_of_their_job() -> None:
    async with running_hub() as running:
        keys = []
        for pod in ("digits-worker-0", "digits-worker-1"):
            async with connected(running, pod) as client:
                await client.say(wire.Hello(agent=pod, peers=True, state=wire.AgentState(phase=wire.AgentPhase.READY)))
                welcome = await client.hear()
                assert isinstance(welcome, wire.Welcome)
                keys.append(welcome.peer_key)
        assert keys[0], "a secret"
        assert keys[0] == keys[1], "the same for all agents of a job"
        assert (await greet(running, "digits-worker-8")).peer_key is None, "nobody else gets it"


async def test_a_newcomer_hears_whether_others_train() -> None:
    async with running_hub() as running:
        assert not (await greet(running, "digits-worker-8")).training
        async with seated(running, "digits-worker-0") as one:
            assert not (await greet(running, "digits-worker-8")).training, "it waits for a world, too"
            await one.state(phase="running", generation=1)
            await eventually(lambda: running.hub.agents(JOB)[UID].state.generation == 1)
            assert (await greet(running, "digits-worker-8")).training
            await one.state(phase="stopping", generation=1)
            await eventually(lambda: running.hub.agents(JOB)[UID].state.phase == "stopping")
            assert not (await greet(running, "digits-worker-8")).training
            await one.state(phase="running", generation=2)
            await eventually(lambda: running.hub.agents(JOB)[UID].state.generation == 2)
        await eventually(lambda: not running.hub.agents(JOB)[UID].connected)
        assert not (await greet(running, "digits-worker-8")).training, "nobody is left who trains"


async def test_jobs_do_not_see_each_other() -> None:
    async with (
        running_hub() as running,
        seated(running, "a-worker-0", job="a") as a,
        seated(running, "b-worker-0", job="b") as b,
    ):
        for generation in (1, 2):
            for job, size in (("a", 2), ("b", 3)):
                running.hub.direct(("default", job), {f"uid-{job}-worker-0": world(generation, size=size)})
            assert await a.directive() == world(generation, size=2)
            assert await b.directive() == world(generation, size=3)
        assert set(running.hub.agents(("default", "a"))) == {"uid-a-worker-0"}


async def test_tls_connections_that_break_off_are_losses_like_others(caplog: pytest.LogCaptureFixture) -> None:
    bundle = certificates.create(["127.0.0.1"], datetime.now(UTC))
    context = ssl.create_default_context(cadata=bundle.trust.decode())
    async with running_hub(context=certificates.server_context(bundle)) as running:
        async with seated(running, context=context) as client:
            connection = client.ws._response.connection
            assert connection is not None and connection.transport is not None
            connection.transport.abort()
        await eventually(lambda: not running.hub.agents(JOB)[UID].connected)
        assert running.hub.agents(JOB)[UID].lost_by == "closed"
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR], caplog.text
