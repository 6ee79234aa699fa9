"""The wire protocol of PMI 1.1, in which MPICH asks its launcher who is in the world: bytes in, actions out.

Lines of `key=value`. All that the ranks of one world put here they may read; a barrier tells them when all have put.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

LINE = 4096  # bytes
NAME, KEY, VALUE = 256, 64, 1024  # what MPICH is told that it may use
KEYS = 1024  # of one rank

GOODBYE = b"cmd=finalize_ack rc=0\n"

_WORDS = re.compile(r"(\w+)=(\S*)")
_MAPPING = "PMI_process_mapping"
_MANY_LINES, _LAST_LINE = "mcmd=spawn", "endcmd"


@dataclass(frozen=True)
class Send:
    """Bytes for a rank."""

    rank: int
    data: bytes


@dataclass(frozen=True)
class Drop:
    """The connection of a rank that says what nobody says."""

    rank: int
    why: str


Action = Send | Drop


class World:
    """What the launcher of one MPI world knows, and answers."""

    def __init__(self, name: str, nodes: Sequence[int]) -> None:
        """`name` differs from that of any other world; `nodes` says on which node each rank is."""
        self._name = name
        self._size = len(nodes)
        self._values = {_MAPPING: describe_nodes(nodes)}
        self._put = [0] * self._size
        self._rest = [b""] * self._size  # of a line whose end has not come yet
        self._spawns = [False] * self._size  # in the middle of a request of several lines
        self._waiting: set[int] = set()
        self._left: set[int] = set()

    @property
    def is_over(self) -> bool:
        """Whether no rank needs answers any more."""
        return len(self._left) == self._size

    def lose(self, rank: int) -> None:
        """The connection of this rank has ended. A barrier that waits for it stays: its agent ends the world."""
        self._left.add(rank)
        self._waiting.discard(rank)

    def receive(self, rank: int, data: bytes) -> list[Action]:
        """What to do about bytes of this rank."""
        *lines, rest = (self._rest[rank] + data).split(b"\n")
        self._rest[rank] = rest
        actions: list[Action] = []
        for line in lines:
            actions += self._answer(rank, line)
            if actions and isinstance(actions[-1], Drop):
                return actions
        return actions + ([Drop(rank, "a line without an end")] if len(rest) > LINE else [])

    def _answer(self, rank: int, line: bytes) -> list[Action]:
        if len(line) > LINE or not line.isascii():
            return [Drop(rank, "a line that is too long, or no text")]
        text = line.decode()
        if self._spawns[rank] or text.startswith(_MANY_LINES):
            self._spawns[rank] = text.strip() != _LAST_LINE
            return [] if self._spawns[rank] else _say(rank, "spawn_result", "rc=-1 msg=not_supported")
        words = dict(_WORDS.findall(text))
        command = words.get("cmd", "")
        if command == "barrier_in":
            return self._enter_barrier(rank)
        if command == "finalize":
            self._left.add(rank)
        if command == "abort":
            return []  # it ends itself
        known = {
            "init": ("response_to_init", "pmi_version=1 pmi_subversion=1 rc=0"),
            "get_maxes": ("maxes", f"kvsname_max={NAME} keylen_max={KEY} vallen_max={VALUE} rc=0"),
            "get_appnum": ("appnum", "appnum=0 rc=0"),
            "get_universe_size": ("universe_size", f"size={self._size} rc=0"),
            "get_my_kvsname": ("my_kvsname", f"kvsname={self._name} rc=0"),
            "finalize": ("finalize_ack", "rc=0"),
            "publish_name": ("publish_result", "rc=-1 msg=not_supported"),
            "unpublish_name": ("unpublish_result", "rc=-1 msg=not_supported"),
            "lookup_name": ("lookup_result", "rc=-1 msg=not_supported"),
        }
        if command == "put":
            return self._take(rank, words)
        if command == "get":
            value = self._values.get(words.get("key", ""))
            found = "rc=-1 msg=not_found" if value is None else f"rc=0 msg=success value={value}"
            return _say(rank, "get_result", found)
        if command in known:
            return _say(rank, *known[command])
        return [Drop(rank, f"an unknown command {command[:KEY]!r}")]

    def _take(self, rank: int, words: dict[str, str]) -> list[Action]:
        key, value = words.get("key", ""), words.get("value", "")
        if not 0 < len(key) <= KEY or len(value) > VALUE:
            return [Drop(rank, "a key or a value that is too long")]
        if key in self._values:
            return _say(rank, "put_result", "rc=-1 msg=duplicate_key")
        if self._put[rank] == KEYS:
            return [Drop(rank, "too many keys")]
        self._values[key] = value
        self._put[rank] += 1
        return _say(rank, "put_result", "rc=0 msg=success")

    def _enter_barrier(self, rank: int) -> list[Action]:
        self._waiting.add(rank)
        if len(self._waiting) < self._size:
            return []
        self._waiting.clear()
        return [action for one in range(self._size) for action in _say(one, "barrier_out", "rc=0")]


def _say(rank: int, command: str, words: str) -> list[Action]:
    return [Send(rank, f"cmd={command} {words}\n".encode())]


def find_abort(said: bytes) -> int | None:
    """The exit code with which a rank asks to be ended, and never 0; None if it does not ask."""
    found = re.search(rb"^cmd=abort\b.*?exitcode=(-?\d{1,10})\b.*\n", said, re.MULTILINE)
    return None if found is None else (int(found[1]) & 0xFF) or 1


def describe_nodes(nodes: Sequence[int]) -> str:
    """The node of each rank as MPICH reads it: blocks of (first node, number of nodes, ranks on each of them)."""
    runs: list[list[int]] = []  # node, ranks
    for node in nodes:
        if runs and runs[-1][0] == node:
            runs[-1][1] += 1
        else:
            runs.append([node, 1])
    blocks: list[list[int]] = []
    for node, ranks in runs:
        if blocks and blocks[-1][2] == ranks and blocks[-1][0] + blocks[-1][1] == node:
            blocks[-1][1] += 1
        else:
            blocks.append([node, 1, ranks])
    text = f"(vector,{','.join(f'({node},{count},{ranks})' for node, count, ranks in blocks)})"
    return text if len(text) <= VALUE else f"(vector,(0,{len(nodes)},1))"  # which is slower, and right


def find_shared_names(name: str, node: int) -> tuple[str, str]:
    """The names in /dev/shm that MPICH uses on a node for the world with this name (FNV-1a of it)."""
    number = 2166136261
    for letter in name.encode():
        number = (number ^ letter) * 16777619 & 0xFFFFFFFF
    return f"mpich_shm_{number:x}_{node}", f"mpich_vci_{number:x}_{node}"
