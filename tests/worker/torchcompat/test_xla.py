"""What torch_xla sees of a world. A stub has its place: its newest release cannot be loaded with this torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elasticjob.torchcompat import xla


def stub(processes: int, is_in_use: bool = True) -> dict[str, Any]:
    """The modules of a script that has imported torch_xla."""
    inner = SimpleNamespace(_xla_runtime_is_initialized=lambda: is_in_use)
    runtime = SimpleNamespace(process_count=lambda: processes)
    return {"torch_xla": SimpleNamespace(_XLAC=inner), "torch_xla.runtime": runtime}


@pytest.mark.parametrize(
    ("environ", "modules", "expected"),
    [
        pytest.param({}, {}, None, id="not imported"),
        pytest.param({"PJRT_DEVICE": "CPU"}, {}, None, id="not imported on the CPU"),
        pytest.param({"PJRT_DEVICE": "cpu"}, stub(4), 1, id="on the CPU"),
        pytest.param({"PJRT_DEVICE": "TPU"}, stub(1), 1, id="a slice of its own"),
        pytest.param({}, stub(4), 4, id="a slice of several"),
        pytest.param({"PJRT_DEVICE": "TPU"}, stub(1, is_in_use=False), None, id="not in use yet"),
        pytest.param({}, {"torch_xla": SimpleNamespace()}, None, id="of another version"),
        pytest.param({}, {"torch_xla": stub(1)["torch_xla"]}, None, id="without its runtime"),
    ],
)
def test_the_processes_that_it_sees(environ: dict[str, str], modules: dict[str, Any], expected: int | None) -> None:
    assert xla.count_processes(environ, modules) == expected


@pytest.mark.parametrize(
    ("processes", "world_size", "is_wrong"),
    [(None, 4, False), (1, 1, False), (4, 4, False), (2, 8, False), (1, 2, True)],
)
def test_one_process_in_a_world_of_several_is_wrong(processes: int | None, world_size: int, is_wrong: bool) -> None:
    assert (xla.find_problem(processes, world_size) is not None) == is_wrong
