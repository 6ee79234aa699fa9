"""A transcript of shell commands in a page: parse, replay, compare, rewrite."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BLOCK: Final = re.compile(r"(?<=```console\n)\$ .*?(?=```)", re.DOTALL)
MASKS: Final = (
    (re.compile(r"\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4}"), "<time>"),
    (re.compile(r"(step|loss) \d+(\.\d+)?"), r"\1 <n>"),
    (re.compile(r" \(\d+%\)"), ""),
    (re.compile(r", (\d+[smhd])+ left"), ""),
)
# What a watch sees only where it was there in time.
PASSING: Final = re.compile(r"Pending|none|Degraded: BelowWanted: .*")


@dataclass(frozen=True)
class Command:
    line: str
    output: str

    @property
    def argv(self) -> list[str]:
        return shlex.split(self.line)


def read(page: Path) -> list[Command]:
    """The commands of all blocks of the page, in order."""
    found = []
    for block in BLOCK.findall(page.read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            found.append(Command(line, output))
    return found


def play(commands: list[Command], run: Callable[[list[str]], str]) -> list[Command]:
    return [Command(command.line, run(command.argv)) for command in commands]


def mask(output: str) -> str:
    """The output without times and numbers that differ between runs."""
    for pattern, replacement in MASKS:
        output = pattern.sub(replacement, output)
    return output.rstrip()


def collect_news(watched: str) -> set[str]:
    """The content of a watch's output: how changes are grouped into lines, and their order, depend on timing."""
    news = [part for line in mask(watched).splitlines() for part in line.partition(": ")[2].split("; ")]
    return {part for part in news if not PASSING.fullmatch(part)}


def write(page: Path, commands: list[Command]) -> None:
    """Replace the page's outputs."""
    left = list(commands)

    def again(match: re.Match[str]) -> str:
        number = len(re.findall(r"^\$ ", match[0], flags=re.MULTILINE))
        mine = [left.pop(0) for _ in range(number)]
        return "".join(f"$ {c.line}\n{c.output.rstrip()}\n" for c in mine)

    page.write_text(BLOCK.sub(again, page.read_text()))
