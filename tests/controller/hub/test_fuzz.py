"""Random bytes into the socket: the hub neither raises nor hangs, and serves the next agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from dataclasses import replace

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaos import extremes
from controller.hub_fixture import FAST, JOB, connected, eventually, running_hub, seated
from elasticjob_operator.api import wire
from elasticjob_operator.hub import frames
from elasticjob_operator.hub.limits import HubSettings

PATIENT = replace(FAST, message_burst=10_000, close_seconds=0.2, hello_seconds=2.0)
FRAME = st.tuples(
    st.sampled_from([aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.PING, aiohttp.WSMsgType.PONG]),
    st.binary(max_size=120),
)
VALID = st.sampled_from(
    [
        wire.State(state=wire.AgentState(phase=phase, generation=generation)).dump()
        for phase in wire.AgentPhase
        for generation in (0, 1, 2**53)
    ]
    + [wire.Progress(step=1).dump(), wire.Diagnosis(text="stack").dump()]
    + [wire.Hello(agent="again", state=wire.AgentState(phase=wire.AgentPhase.READY)).dump()]
).map(lambda message: (aiohttp.WSMsgType.TEXT, json.dumps(message).encode()))


async def send_all(frames: list[tuple[aiohttp.WSMsgType, bytes]], settings: HubSettings = PATIENT) -> None:
    async with running_hub(settings) as running:
        async with seated(running, heartbeat=None) as client:
            with contextlib.suppress(ConnectionError):
                for opcode, data in frames:
                    await client.ws.send_frame(data, opcode)
        await eventually(lambda: running.hub.connections == 0)
        async with seated(running):
            assert running.hub.agents(JOB)["uid-digits-worker-0"].connected


@given(st.lists(FRAME | VALID, max_size=12))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_frames_of_any_kind(caplog: pytest.LogCaptureFixture, frames: list[tuple[aiohttp.WSMsgType, bytes]]) -> None:
    asyncio.run(send_all(frames))
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR], caplog.text


@pytest.mark.parametrize("seed", range(4))
async def test_random_bytes_instead_of_frames(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """After the upgrade: reserved bits, absurd lengths, control frames in pieces, unmasked data."""
    chance = random.Random(seed)
    async with running_hub(PATIENT) as running:
        for _ in range(40):
            async with connected(running, heartbeat=None) as client:
                if chance.random() < 0.5:
                    await client.hello()
                connection = client.ws._response.connection
                assert connection is not None and connection.transport is not None
                connection.transport.write(chance.randbytes(chance.choice([1, 2, 14, 400])))
        await eventually(lambda: running.hub.connections == 0)
        async with seated(running):
            pass
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR], caplog.text


@pytest.mark.parametrize("seed", range(4))
async def test_random_bytes_instead_of_http(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(seed)
    starts = [b"", b"GET ", b"GET /v1/agent HTTP/1.1\r\n", b"\x16\x03\x01", b"GET /v1/agent HTTP/1.1\r\nHost:"]
    async with running_hub(PATIENT) as running:
        for _ in range(40):
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            with contextlib.suppress(ConnectionError):
                writer.write(chance.choice(starts) + chance.randbytes(chance.choice([0, 1, 30, 20_000])) + b"\r\n\r\n")
                writer.write_eof()
                await asyncio.wait_for(reader.read(), 30)
            writer.close()
        await eventually(lambda: running.hub.pending_sockets == 0)
        async with seated(running):
            pass
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR], caplog.text


@pytest.mark.parametrize("kind", range(len(extremes.MESSAGES)), ids=[one[0] for one in extremes.MESSAGES])
async def test_every_field_of_a_message_with_extremes(kind: int, caplog: pytest.LogCaptureFixture) -> None:
    """What is valid leaves the connection open; what is not ends that connection, and no other."""
    _, fields, example = extremes.MESSAGES[kind]
    texts = [json.dumps(message) for _, message in extremes.each(example, fields)]
    dice = random.Random(kind)
    texts += [json.dumps(extremes.draw(dice, example, fields, 2)[1]) for _ in range(200)]
    texts = [text for text in texts if len(text) < wire.MAX_MESSAGE_BYTES]
    refused = [text for text in texts if isinstance(frames.decode(text), frames.Problem)]
    taken = sorted(set(texts) - set(refused))
    settings = replace(PATIENT, message_burst=1e6, connect_burst=1e6, note_kib_burst=0.0, timeout_min=60.0)
    async with running_hub(settings) as running, seated(running, "digits-worker-1", heartbeat=None) as bystander:
        async with seated(running, heartbeat=None) as client:
            for text in taken:
                await client.ws.send_str(text)
            await client.state(phase="starting", step=12)
            await eventually(lambda: running.hub.agents(JOB)["uid-digits-worker-0"].state.step == 12)
        for text in dice.sample(refused, min(20, len(refused))):
            async with seated(running, heartbeat=None) as client:
                await client.ws.send_str(text)
                error, _ = await client.refusal()
                assert error is not None, text[:300]
        await bystander.state(phase="ready", step=1, generation=1)
        await eventually(lambda: running.hub.agents(JOB)["uid-digits-worker-1"].state.step == 1)
    assert taken and refused
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR], caplog.text
