"""When the operator looks for what kopf has left behind."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from elasticjob_operator.kube.garbage import STEP, Garbage, read_resident


class Process:
    """A process of so many bytes, of which a collection frees all above a floor."""

    def __init__(self) -> None:
        self.floor = self.bytes = 10 * STEP
        self.collections: list[int] = []

    def collect(self, generation: int) -> None:
        self.collections.append(generation)
        self.bytes = self.floor


def test_it_looks_once_a_step() -> None:
    process = Process()
    garbage = Garbage(lambda: process.bytes, process.collect)
    for _ in range(80):
        process.bytes += STEP // 8
        garbage.look()
    assert process.bytes < process.floor + STEP
    assert process.collections == [1] * 10


def test_it_does_not_repeat_itself_where_memory_is_needed() -> None:
    process = Process()
    garbage = Garbage(lambda: process.bytes, process.collect)
    process.floor = process.bytes = 20 * STEP
    for _ in range(100):
        garbage.look()
    assert len(process.collections) == 1
    process.bytes = process.floor = 2 * STEP  # given back
    garbage.look()
    process.bytes += STEP
    garbage.look()
    assert len(process.collections) == 2


@pytest.mark.skipif(not platform.libc_ver()[0].startswith("glibc"), reason="another C library gives back what is free")
def test_what_is_freed_among_what_stays_goes_back_to_the_system() -> None:
    garbage = Garbage()
    texts = [bytes(2000) for _ in range(4 * STEP // 2000)]
    kept = texts[::100]  # each one pins what is below it
    del texts
    before = read_resident()
    garbage.look()
    assert read_resident() < before - 2 * STEP
    assert len(kept) > 100


def test_the_memory_of_a_process() -> None:
    assert read_resident() > 2**20


LOADING = """
import gc
from elasticjob_operator.__main__ import calm_collector

calm_collector()
looked = []

def note(phase, info):
    if phase == "start":
        looked.append(sum(len(gc.get_objects(generation=one)) for one in range(info["generation"] + 1)))

gc.callbacks.append(note)
kept = [[i] for i in range(1_500_000)]
gc.collect(1)
gc.callbacks.clear()
print(len(looked), max(looked))
"""


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 looks for cycles in small steps by itself")
def test_one_look_is_at_a_bounded_number_of_objects() -> None:
    """However much was loaded since the last one: the event loop stands still meanwhile."""
    argv = [sys.executable, "-c", LOADING]
    times, most = map(int, subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split())
    assert times > 1
    assert most <= 200_000
