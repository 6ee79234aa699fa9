"""What the preflight thinks of devices: decisions as tables, without a device."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from elasticjob.context.backends import BOTH, BackendFacts
from elasticjob.diagnose import counters, device_probe, devices, doctor, hardware, selftest
from elasticjob.diagnose.devices import Health, Measured
from elasticjob.diagnose.findings import FAIL, OK, WARN, Finding

GOOD = Measured(0, "H100", "GPU-0", 80.0, teraflops=600.0, to_device=50.0, from_device=52.0)


@pytest.mark.parametrize(
    ("measured", "status", "words"),
    [
        pytest.param([GOOD], OK, "H100, 600 TFLOP/s, 50 GB/s to it, 52 GB/s from it", id="one sound device"),
        pytest.param([GOOD, replace(GOOD, index=1)], OK, "H100", id="two sound devices"),
        pytest.param([replace(GOOD, error="CUDA error: uncorrectable")], FAIL, "uncorrectable", id="an error"),
        pytest.param([GOOD, replace(GOOD, index=1, computes_right=False)], FAIL, "cuda:1", id="a wrong product"),
        pytest.param([replace(GOOD, holds_right=False)], FAIL, "does not hold", id="bad memory"),
        pytest.param(
            [GOOD, replace(GOOD, index=1, teraflops=590.0)], OK, "590 TFLOP/s", id="a little slower than its neighbour"
        ),
        pytest.param(
            [GOOD, replace(GOOD, index=1, teraflops=420.0)],
            WARN,
            "cuda:1 computes at 420.0 TFLOP/s, its neighbours at 600.0",
            id="slower than its neighbour",
        ),
        pytest.param([GOOD, replace(GOOD, index=1, teraflops=200.0)], FAIL, "cuda:1", id="much slower"),
        pytest.param(
            [replace(GOOD, index=i, to_device=12.0 if i == 2 else 50.0) for i in range(4)],
            WARN,
            "cuda:2 copies from the host at 12.0 GB/s, its neighbours at 50.0",
            id="a narrow link",
        ),
        pytest.param([replace(GOOD, from_device=0.4)], WARN, "copies to the host at 0.4 GB/s", id="a link of 0.4 GB/s"),
        pytest.param([replace(GOOD, teraflops=None, to_device=None)], OK, "H100", id="not measured"),
    ],
)
def test_devices_are_judged(measured: list[Measured], status: str, words: str) -> None:
    found = devices.judge(measured)
    assert (found.status, words in found.detail) == (status, True), found
    assert found.remedy or status == OK


@pytest.mark.parametrize(
    ("health", "status", "words"),
    [
        pytest.param(Health(0), OK, "by NVML", id="nothing is told"),
        pytest.param(Health(0, "GPU-a", 0, False, False), OK, "1 devices", id="sound"),
        pytest.param(Health(0, uncorrected=3), FAIL, "3 uncorrected errors", id="errors of memory"),
        pytest.param(Health(0, rows_failed=True), FAIL, "could not be remapped", id="no spare rows"),
        pytest.param(Health(0, rows_pending=True), FAIL, "wait to be remapped", id="a reset is due"),
        pytest.param(Health(0, slowed=("thermal",)), WARN, "thermal", id="hot"),
        pytest.param(Health(0, links_down=2, links_up=16), WARN, "2 of 18 NVLinks", id="links are down"),
        pytest.param(Health(0, links_down=18, links_up=0), OK, "1 devices", id="a card without a bridge"),
    ],
)
def test_counters_are_judged(health: Health, status: str, words: str) -> None:
    found = devices.judge_health([health], "NVML")
    assert (found.status, words in found.detail) == (status, True), found


@pytest.mark.parametrize(
    ("processes", "count", "names", "words"),
    [
        pytest.param(1, 1, ["H100"], None, id="one each"),
        pytest.param(2, 8, ["H100"] * 8, None, id="more devices than processes"),
        pytest.param(2, 0, [], None, id="no devices"),
        pytest.param(2, 1, ["NVIDIA A100-SXM4-80GB MIG 3g.40gb"], "one MIG device only", id="two parts of one device"),
        pytest.param(4, 2, ["T4", "T4"], "NCCL joins no two processes", id="time-sliced devices"),
    ],
)
def test_each_process_needs_a_device(processes: int, count: int, names: list[str], words: str | None) -> None:
    found = devices.judge_sharing(processes, count, names)
    if words is None:
        assert found is None
        return
    assert found is not None
    assert found.status == FAIL
    assert words in found.detail
    assert f"nprocPerNode: {count}" in found.remedy


def test_the_rows_of_nvidia_smi_are_read() -> None:
    text = """0, GPU-a, 0, No, No, [N/A], Not Active, Not Active
1, GPU-b, 2, Yes, No, No, Active, Not Active
2, GPU-c, [N/A], [N/A], Yes, Yes, Not Active, Active
Field "x" is not a valid field to query."""
    assert counters.parse_table(text) == [
        Health(0, "GPU-a", 0, False, False),
        Health(1, "GPU-b", 2, False, True, ("thermal",)),
        Health(2, "GPU-c", None, True, True, ("power brake",)),
    ]


def test_a_product_of_matrices_is_checked_exactly() -> None:
    first, second = device_probe.make_factors(512, 64)
    product = first.to(torch.bfloat16).float() @ second.to(torch.bfloat16).float()
    assert device_probe.is_product(product.to(torch.bfloat16), first, second), "exact in bfloat16"
    for row, column in ((0, 0), (17, 511)):
        wrong = product.clone()
        wrong[row, column] += 1
        assert not device_probe.is_product(wrong, first, second)


@pytest.mark.parametrize(
    ("facts", "worlds"),
    [
        pytest.param(BackendFacts(), [("gloo", 2)], id="no device"),
        pytest.param(BackendFacts(cuda_devices=1, nccl=True), [("gloo", 2), (BOTH, 1)], id="one device"),
        pytest.param(BackendFacts(cuda_devices=8, nccl=True), [("gloo", 2), (BOTH, 8)], id="eight devices"),
        pytest.param(BackendFacts(cuda_devices=2), [("gloo", 2)], id="torch without NCCL"),
        pytest.param(BackendFacts(cuda_devices=2, nccl=True, gloo=False), [("nccl", 2)], id="torch without gloo"),
    ],
)
def test_local_worlds_have_one_rank_for_each_device(facts: BackendFacts, worlds: list[tuple[str, int]]) -> None:
    assert [(one.backend, one.size) for one in doctor.plan_local_worlds(facts)] == worlds


def test_what_passed_in_two_worlds_is_told_once() -> None:
    first, second = Finding("all_reduce", OK, "2 ranks; 1 ms"), Finding("all_reduce", OK, "1 ms")
    bad = Finding("all_reduce", FAIL, "wrong", "drain", 1)
    assert doctor.merge_worlds([first, second]) == [second]
    assert doctor.merge_worlds([first, bad]) == [first, bad]


@pytest.mark.parametrize(("rate", "status"), [(300.0, OK), (8.0, OK), (0.2, FAIL)])
def test_the_links_between_devices_have_a_floor(rate: float, status: str) -> None:
    assert selftest.judge_reduce(rate, 0).status == status


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that runs in the place of the process that tries the devices."""
    program = tmp_path / "probe.py"
    runner = tmp_path / "python"
    runner.write_text(f"#!/bin/sh\nexec {sys.executable} {program}\n")
    runner.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(runner))
    return program


def test_devices_are_tried_by_another_process(probe: Path) -> None:
    probe.write_text('print(\'{"index": 0, "name": "H100", "teraflops": 600.0}\')')
    assert hardware.probe_devices({}) == [Measured(0, "H100", teraflops=600.0)]


def test_a_driver_that_does_not_answer_holds_up_nobody(probe: Path) -> None:
    probe.write_text('import time\nprint(\'{"index": 0, "name": "H100"}\', flush=True)\ntime.sleep(600)')
    began = time.monotonic()
    found = hardware.probe_devices({}, seconds=1.0)
    assert time.monotonic() - began < 30, "it waits for the process"
    assert isinstance(found, Finding)
    assert (found.status, "cuda:1 did not answer" in found.detail) == (FAIL, True)


def test_a_device_that_ends_the_process_is_named(probe: Path) -> None:
    probe.write_text("import sys\nsys.exit('RuntimeError: CUDA error: device-side assert')")
    found = hardware.probe_devices({})
    assert isinstance(found, Finding)
    assert (found.status, "cuda:0" in found.detail, "CUDA error" in found.detail) == (FAIL, True, True)
