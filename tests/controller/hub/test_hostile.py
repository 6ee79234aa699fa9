"""Eighty hostile pods of one tenant attack the hub, while an agent of another tenant connects to train."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from controller.hub_fixture import RunningHub, running_hub
from elasticjob_operator.hub import auth, certificates
from elasticjob_operator.hub.limits import HubSettings
from hostile_agents import Door, Hostile, attacking_process, connecting

PODS = 80
EVIL, GOOD = "evil", "nice"
# What the attacks make the hub do: refuse tokens, give up upgrades for newer ones, end floods, log no more.
NOTICED = {"refused:401", "closed:superseded", "closed:rate", "unlogged"}


async def by_claims(token: str, address: str) -> auth.Identity | auth.Refusal:
    """The token of these tests is `<namespace>.<pod>.<signature>`; one that the test did not sign opens nothing."""
    namespace, pod, signature = token.split(".")
    if signature != "signed":
        return auth.Refusal(401, "no such signature")
    return auth.Identity(namespace, pod, f"uid-{namespace}-{pod}", "job")


@dataclass(frozen=True)
class Siege:
    running: RunningHub
    hostile: Hostile
    trust: ssl.SSLContext

    async def enter(self, pod: str) -> tuple[int, float]:
        """A good agent comes once. Returns the status that it heard, 0 for none, and the seconds until its welcome."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(5), connecting(Door("127.0.0.1", self.running.port, self.trust)) as peer:
                status = await peer.upgrade(f"{GOOD}.{pod}.signed")
                if status == 101:
                    assert b'"welcome"' in await peer.hello()
                return status, loop.time() - began
        return 0, loop.time() - began


@asynccontextmanager
async def besieged(folder: Path, *more: str) -> AsyncIterator[Siege]:
    bundle = certificates.create(["127.0.0.1"], datetime.now(UTC))
    (folder / "ca.crt").write_bytes(bundle.trust)
    (folder / "tokens.json").write_text(json.dumps([f"{EVIL}.pod-{i}.signed" for i in range(PODS)]))
    context = certificates.server_context(bundle)
    async with (
        running_hub(HubSettings(), authenticate=by_claims, context=context) as running,
        attacking_process(running.port, folder / "ca.crt", folder / "tokens.json", "--sources", *more) as hostile,
    ):
        yield Siege(running, hostile, ssl.create_default_context(cadata=bundle.trust.decode()))


async def test_eighty_hostile_pods_turn_no_agent_of_another_tenant_away(tmp_path: Path) -> None:
    """Every attack at once, from addresses of their own. That of an agent is told by counts; its time only roughly."""
    async with besieged(tmp_path, "--held", "1") as siege:
        hub = siege.running.hub
        heard: list[tuple[int, float]] = []
        while len(heard) < 20 or not hub.counts.keys() >= NOTICED:
            heard.append(await siege.enter(f"pod-{len(heard)}"))
            assert all(taken <= capacity for taken, capacity in hub.places.values())
            assert all(identity.startswith("uid-evil-") for identity in hub.agents((EVIL, "job")))
        tally = await siege.hostile.stop()
    assert {status for status, _ in heard} == {101}, tally
    waited = sorted(seconds for _, seconds in heard)
    print(f"median {waited[len(waited) // 2]:.3f} s, longest {waited[-1]:.3f} s; the attackers: {tally}")
    assert waited[len(waited) // 2] < 1.0, waited
