"""What torch tells about the collectives that this process has entered."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from elasticjob.torchcompat import groups
from worker.gang_helper import PROGRAMS, run_gang


@pytest.fixture
def world() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world")
def test_collectives_are_counted() -> None:
    before = groups.count_collectives()
    dist.all_reduce(torch.ones(4, 4))
    assert before is not None
    assert groups.count_collectives() == before + 1
    last = groups.find_last_collective()
    assert last == "" or "all_reduce of [4, 4] Float" in last  # torch before 2.9 records those of NCCL only


@pytest.mark.usefixtures("world")
def test_collectives_of_a_group_without_a_default_backend_are_counted() -> None:
    """torch gives `cpu:gloo` none in a process that knows a plugin's backend: torch's own checkpoints register one."""
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    group = dist.new_group(backend="cpu:gloo,cuda:gloo")
    before, (each,) = groups.count_collectives(), groups.count_each([group]).values()
    dist.all_reduce(torch.ones(4, 4), group=group)
    assert before is not None
    assert groups.count_collectives() == before + 1
    assert list(groups.count_each([group]).values()) == [each + 1]
    dist.destroy_process_group(group)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        pytest.param(
            {
                "profiling_name": "nccl:all_reduce", "input_sizes": [[4, 4]], "input_dtypes": ["Float"],
                "collective_seq_id": 17, "process_group": ["0", "default_pg"],
            },
            "nccl:all_reduce of [4, 4] Float, number 17 of default_pg", id="one tensor",
        ),
        pytest.param(
            {
                "profiling_name": "nccl:send", "input_sizes": [[1]] * 6, "input_dtypes": ["Half"] * 6,
                "is_p2p": True, "p2p_seq_id": 3, "process_group": ["1", "pipeline"],
            },
            "nccl:send of [1] Half, [1] Half, [1] Half, [1] Half and 2 more, number 3 of pipeline", id="many",
        ),
        pytest.param({"profiling_name": "gloo:barrier", "collective_seq_id": 2}, "gloo:barrier, number 2", id="none"),
    ],
)  # fmt: skip
def test_an_entry_of_the_flight_recorder_is_a_line(entry: dict[str, Any], text: str) -> None:
    assert groups.describe(entry) == text


def test_a_world_is_left_right_after_a_collective() -> None:
    """Up to torch 2.7 a group that is freed then can wait for a thread that waits for the GIL."""
    program = Path(__file__).parents[1] / "programs/leave_program.py"
    done = subprocess.run([sys.executable, program, "60"], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "left\n"


def test_collectives_of_a_world_are_counted_alike_on_all_ranks_whatever_was_sent_before() -> None:
    """Ranks that send their state to a joiner have sent other numbers of messages than those that do not."""
    ranks = run_gang(PROGRAMS / "counts_program.py", 3)
    for world in ("world 0", "world 1"):
        assert len({rank.results[world] for rank in ranks}) == 1
    assert ranks[0].results["world 1"] >= 1
    for rank in ranks:
        assert rank.results["messages in world 1"] == 0, "those of gloo are under way on no device"


def test_a_message_of_a_group_that_is_not_gloos_is_counted() -> None:
    before = groups.count_messages()
    groups.counting(lambda group: None)(object())
    assert groups.count_messages() == before + 1
