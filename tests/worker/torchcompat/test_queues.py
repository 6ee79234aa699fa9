"""What torch's flight recorder says of a device."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from elasticjob.torchcompat import graphs, probe, queues
from elasticjob.torchcompat.queues import Queues


def status(queued: object, completed: object) -> dict[str, object]:
    return {
        "last_enqueued_collective": queued,
        "last_started_collective": "-1",
        "last_completed_collective": completed,
    }


@pytest.mark.parametrize(
    ("told", "former", "expected"),
    [
        pytest.param({"0": status("5", "5")}, [], Queues(5, False), id="all is done"),
        pytest.param({"0": status("5", "4")}, [], Queues(4, True), id="one is not"),
        pytest.param({"0": status(5, 4)}, [], Queues(4, True), id="numbers"),
        pytest.param({"0": status("5", "5"), "3": status("2", "1")}, [], Queues(6, True), id="of two groups"),
        pytest.param({"0": status("5", "4"), "3": status("2", "2")}, ["0"], Queues(2, False), id="of an earlier world"),
        pytest.param({"0": status("5", "4")}, ["0"], Queues(0, False), id="nothing in this world"),
        pytest.param({"0": status("2", "7")}, [], Queues(7, True), id="a message, with a number of its own"),
        pytest.param({"0": {}}, [], None, id="another form"),
        pytest.param({"0": status("x", "4")}, [], None, id="no number"),
        pytest.param({"0": None}, [], None, id="nothing"),
    ],
)
def test_what_the_device_has_completed(told: Any, former: list[str], expected: Queues | None) -> None:
    assert queues.judge(told, former) == expected


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What the recorder of this process has, as text."""
    text = [""]
    monkeypatch.setattr(probe, "find", lambda path: lambda *_: text[0].encode())
    monkeypatch.setattr(queues, "_former", frozenset())
    monkeypatch.setattr(queues, "_is_aborted", False)
    return lambda said: text.__setitem__(0, said)


def test_a_world_counts_until_it_is_aborted(tell: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    tell(json.dumps({"pg_status": {"0": status(5, 4)}}))
    assert queues.find() == Queues(4, True)
    queues.abort()
    assert queues.find() is None, "its kernels are gone, and the watchdog does not look any more"
    queues.enter_world()
    assert queues.find() == Queues(0, False)
    tell(json.dumps({"pg_status": {"0": status(5, 4), "1": status(2, 1)}}))
    assert queues.find() == Queues(1, True)
    monkeypatch.setattr(graphs, "_replayed", 1)
    assert queues.find() is None, "nobody counts what a graph queues"


@pytest.mark.parametrize("said", ["", "{}", "[]", '{"pg_status": []}', '{"pg_status": {}}', '{"pg_status": {"0": 1}}'])
def test_a_recorder_that_tells_nothing_is_none(tell: Callable[[str], None], said: str) -> None:
    tell(said)
    assert queues.find() is None


def test_a_torch_without_nccl_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "find", lambda path: None)
    assert queues.find() is None


@pytest.mark.skipif(probe.find("torch._C._distributed_c10d._dump_fr_trace_json") is None, reason="an older torch")
def test_torch_has_this_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder of gloo's groups, which is there on any machine, has the same one."""
    record = probe.find("torch._C._distributed_c10d._dump_fr_trace_json")
    monkeypatch.setattr(probe, "find", lambda path: record)
    monkeypatch.setattr(queues, "_is_aborted", False)
    queues.enter_world()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
        deadline = time.monotonic() + 20  # gloo's thread notes it behind the result
        while queues.find() != Queues(3, False):
            assert time.monotonic() < deadline, queues.find()
            time.sleep(0.01)
    finally:
        dist.destroy_process_group()
        queues.enter_world()
