"""The peak of a device is known by the name that torch gives it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from elasticjob.torchcompat import peaks


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("Tesla T4", 65),
        ("Tesla V100-SXM2-16GB", 125),
        ("Tesla V100-PCIE-16GB", 112),
        ("Tesla V100S-PCIE-32GB", 130),
        ("NVIDIA H800 PCIe", 756),
        ("NVIDIA GB200", 2500),
        ("AMD Instinct MI300X", 1307),
        ("AMD Instinct MI300X VF", 1307),
        ("AMD Instinct MI300A", 981),
        ("AMD Instinct MI250X", 191.5),  # torch sees each of its two dies as a device
        ("AMD Instinct MI250", 181),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("GRID A100-1-5C", None),
        ("GRID A100-1-5CME", None),
        ("NVIDIA H100-80C", None),
        ("NVIDIA A10-24Q", None),
        ("GRID T4-1B", None),
        ("Tesla T40 24GB", None),
        ("NVIDIA RTX A4000", None),
        ("NVIDIA GeForce RTX 4090", None),
        ("", None),
    ],
)
def test_the_peak_of_a_device(name: str, teraflops: float | None) -> None:
    assert peaks.find_peak(name) == (None if teraflops is None else teraflops * 1e12)


def test_nothing_is_initialized_to_ask_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: pytest.fail("this makes a context on the device"))
    assert peaks.read_peak() is None


def test_the_device_of_a_process_is_named_once_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="5f3a-0c"))
    assert peaks.read_device() == "", "nothing is initialized for it"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert peaks.read_device() == "cuda:1 GPU-5f3a-0c"
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace())
    assert peaks.read_device() == "cuda:1", "before torch 2.5"
    monkeypatch.delattr(torch.cuda, "current_device")
    assert peaks.read_device() == "", "a device may have failed, and a report must not"


def test_a_device_that_has_failed_has_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def fail() -> str:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", fail)
    assert peaks.read_peak() is None
