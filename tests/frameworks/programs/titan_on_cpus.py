"""torchtitan on processors: to be imported before anything else of it. It knows accelerators only.

Its `__init__` wants Triton, of which a debug model uses nothing: that is left out.
"""

from __future__ import annotations

import sys
import types
import unittest.mock

import torch


def import_for_cpus():
    """Import torchtitan so that it takes the processor for its device."""
    kernels = types.ModuleType("torchtitan.models.moe.kernels")  # of mixtures of experts, in Triton
    kernels.generate_permute_indices = None
    sys.modules[kernels.__name__] = kernels
    device = types.SimpleNamespace(
        set_device=lambda device: None,
        current_device=lambda: 0,
        get_device_name=lambda device: "cpu",
        get_device_properties=lambda device: types.SimpleNamespace(total_memory=2**34),
        reset_peak_memory_stats=lambda: None,
        empty_cache=lambda: None,
        synchronize=lambda: None,
        memory_stats=lambda device: {},
    )
    found = {"_get_available_device_type": lambda: "cpu", "_get_device_module": lambda name: device}
    with unittest.mock.patch.multiple(torch._utils, **found):
        import torchtitan.train  # noqa: F401


import_for_cpus()
