"""How a rank shows that it belongs to the world, and the server that it is the world's.

MPICH cannot be told a password. So the rank connects before MPI starts, both sides prove that they know the secret of
the world, and MPICH gets the connection. Texts in, texts out.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

LINE = 256  # bytes
_NONCE = 16
_ANSWER = re.compile(rb"(\d{1,7}) (\d{1,7}) ([0-9a-f]{32}) ([0-9a-f]{64})")


@dataclass(frozen=True)
class Place:
    """Where a rank is in the world."""

    rank: int
    node: int


def draw() -> str:
    """A number that nobody has drawn before."""
    return secrets.token_hex(_NONCE)


def prove(secret: str, side: str, theirs: str, mine: str, place: Place) -> str:
    """What only one who knows the secret can say, about the numbers that both sides have drawn."""
    text = f"elasticjob-mpi {side} {theirs} {mine} {place.rank} {place.node}"
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def answer(secret: str, drawn: str, mine: str, place: Place) -> bytes:
    """A rank's line in answer to the number that the server has drawn."""
    return f"{place.rank} {place.node} {mine} {prove(secret, 'rank', drawn, mine, place)}\n".encode()


def judge(secret: str, drawn: str, line: bytes, size: int) -> tuple[Place, bytes] | None:
    """Who says this, and the server's line in answer; None if it is none of the world's ranks."""
    found = _ANSWER.fullmatch(line)
    if found is None:
        return None
    place, mine = Place(int(found[1]), int(found[2])), found[3].decode()
    expected = prove(secret, "rank", drawn, mine, place)
    if place.rank >= size or not hmac.compare_digest(found[4].decode(), expected):
        return None
    return place, prove(secret, "server", drawn, mine, place).encode() + b"\n"


def is_server(secret: str, drawn: str, mine: str, place: Place, line: bytes) -> bool:
    """Whether the server's answer shows that it knows the secret."""
    return hmac.compare_digest(line, prove(secret, "server", drawn, mine, place).encode())
