"""The bench: its arithmetic as tables, and one short run with a plot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elasticjob.diagnose import bench
from elasticjob.errors import ConfigurationError
from worker.gang_helper import clean_environment, lines_of


@pytest.mark.parametrize(
    ("operation", "size", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 2, 0.5),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("send_recv", 8, 1.0),
    ],
)
def test_bus_factor_is_that_of_nccl_tests(operation: str, size: int, factor: float) -> None:
    assert bench.bus_factor(operation, size) == factor


def test_build_row() -> None:
    row = bench.build_row("all_reduce", 10**9, 0.5, (4, "gloo"), raw=6.0)
    assert (row["algorithmGBs"], row["busGBs"], row["ofRaw"]) == (2.0, 3.0, 0.5)
    assert bench.build_row("reduce", 4, 1.0, (1, "gloo"), raw=0.0)["ofRaw"] is None


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("1K:16K", [1024, 4096, 16384]), ("4,1M", [4, 1 << 20]), ("2KB", [2048]), ("1g", [1 << 30])],
)
def test_parse_sizes(text: str, sizes: list[int]) -> None:
    assert bench.parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "x", "4X", "1:2:3", "1M:1K", "2"])
def test_wrong_sizes_are_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--sizes"):
        bench.parse_sizes(text)


@pytest.mark.timeout(300)  # a busy machine takes its time for three processes that import torch, and matplotlib
def test_a_run_with_a_plot(tmp_path: Path) -> None:
    picture = tmp_path / "bench.png"
    command = [sys.executable, "-m", "elasticjob", "bench", "--sizes=4K,64K", "--seconds=0.01", f"--plot={picture}"]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in lines_of(done.stdout)]
    assert {row["operation"] for row in rows} >= {"all_reduce", "all_gather", "broadcast", "send_recv"}
    assert {row["bytes"] for row in rows} == {4096, 65536}
    for row in rows:
        assert row["seconds"] > 0
        assert row["busGBs"] == pytest.approx(row["algorithmGBs"] * bench.bus_factor(row["operation"], 2))
        assert row["rawGBs"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("arguments", [["--operations=dance"], ["--sizes=4X"]])
def test_wrong_arguments_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("elasticjob bench: --")
    assert captured.err.count("\n") == 1
