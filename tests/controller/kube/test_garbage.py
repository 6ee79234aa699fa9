"""When the operator looks for what kopf has left behind."""

from __future__ import annotations

import platform

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
