"""A hostile pod with a valid token of its own. One attack for each name.

    python hostile_agent.py ATTACK [--pause SECONDS]

Most attacks are those of `hostile_agents`; three more use the protocol for a while.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chaos import extremes
from hostile_agents import ATTACKS, Attack, Attacker, Door, attack_forever, attacking, connecting

HELD = 20  # sockets of one pod at a time


async def ready_again(one: Attacker) -> None:
    """Leave every world at once, and become ready for the next one with another store."""
    ports = itertools.cycle(range(1024, 60_000))
    async with connecting(one.door) as peer:
        if await peer.upgrade(one.token) != 101:
            return
        await peer.hello()
        for generation in itertools.count():
            store = {"address": "\x1b[31m", "port": next(ports)}
            await peer.say({"type": "state", "state": {"phase": "ready", "generation": generation, "store": store}})
            await one.rest()
            await peer.reader.read(65536)


async def never_reads(one: Attacker) -> None:
    """Send, and read nothing that the hub sends."""
    async with connecting(one.door) as peer:
        if await peer.upgrade(one.token) != 101:
            return
        await peer.hello()
        for step in itertools.count():
            await peer.frame(9, b"x" * 100)
            await peer.say({"type": "state", "state": {"phase": "starting", "nproc": 1 + step % 1024}})
            await one.rest()


async def odd_messages(one: Attacker) -> None:
    """Messages with one or two fields that have extremes, until one of them ends the connection."""
    async with connecting(one.door) as peer:
        if await peer.upgrade(one.token) != 101:
            return
        await peer.hello()
        while not peer.reader.at_eof():
            kind, fields, example = random.choice(extremes.MESSAGES)
            _, message = extremes.draw(random.Random(), example, fields, random.choice((1, 1, 2)))
            one.tally[f"odd_messages:{kind}"] += 1
            await peer.frame(1, json.dumps(message)[:60_000].encode(errors="replace"))
            await one.rest()


OURS: dict[str, Attack] = {"ready_again": ready_again, "never_reads": never_reads, "odd_messages": odd_messages}
MODES = (*ATTACKS, *OURS)


async def main(attack: str, pause: float) -> None:
    where = urlsplit(os.environ["ELASTICJOB_HUB_URL"])
    ca = os.environ.get("ELASTICJOB_CA_FILE", "")
    context = ssl.create_default_context(cafile=ca) if ca else None
    door = Door(where.hostname or "", where.port or 443, context, source=os.environ["ELASTICJOB_POD_IP"])
    token = Path(os.environ["ELASTICJOB_TOKEN_FILE"]).read_text().strip()
    if attack in OURS:
        await attack_forever(OURS[attack], Attacker(door, token, pause=pause))
    async with attacking(door, [token], attacks=[attack], held=HELD, pause=pause) as tally:
        while True:
            await asyncio.sleep(10)
            print(json.dumps(tally), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("attack", choices=MODES)
    parser.add_argument("--pause", type=float, default=0.2, help="between two tries; others share the machine")
    args = parser.parse_args()
    asyncio.run(main(args.attack, args.pause))
