"""Tries each CUDA device of this machine: `python -m elasticjob.diagnose.device_probe` prints a JSON object for each.

It is a process of its own: what it allocates on the devices, its contexts among it, ends with it, and a driver that
does not answer holds up nobody else.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace

import torch

from elasticjob.diagnose.devices import Measured

_SIDE = 4096
_USED = 256  # columns with a number in each row: all sums are integers that bfloat16 holds exactly, in any order
_PATTERN = 1 << 30  # bytes of the device's memory to write and to read again, at most half of what is free
_COPY = 128 << 20
_REPEATS = 20


@functools.cache
def make_factors(side: int, used: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two matrices of -1, 0 and 1, whose product has integers of at most `used`."""
    generator = torch.Generator().manual_seed(1)
    first = torch.zeros(side, side, dtype=torch.int8)
    columns = torch.randint(side // used, (side, used), generator=generator) + torch.arange(used) * (side // used)
    signs = torch.randint(2, (side, used), generator=generator, dtype=torch.int8) * 2 - 1
    first.scatter_(1, columns, signs)
    second = torch.randint(2, (side, side), generator=generator, dtype=torch.int8) * 2 - 1
    return first, second


def is_product(product: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether a matrix of integers is the product of two others: (first second) v = first (second v) for a random v.

    It costs three products with a vector. A wrong element is missed only where its row of `v` is 0.
    """
    vector = torch.randint(1, 1 << 12, (second.shape[1],), generator=torch.Generator().manual_seed(2)).double()
    return torch.equal(product.double() @ vector, first.double() @ (second.double() @ vector))


def probe(index: int) -> Measured:
    device = torch.device("cuda", index)
    properties = torch.cuda.get_device_properties(index)
    found = Measured(index, properties.name, str(getattr(properties, "uuid", "")))
    found = replace(found, gib=round(properties.total_memory / 2**30, 1))
    try:
        torch.cuda.set_device(device)
        right, teraflops = _compute(device)
        to_device, from_device = _copy(device)
        held = _hold(device)
    except RuntimeError as error:
        return replace(found, error=str(error).strip().partition("\n")[0][:200])
    return replace(
        found,
        computes_right=right,
        holds_right=held,
        teraflops=teraflops,
        to_device=to_device,
        from_device=from_device,
    )


def _compute(device: torch.device) -> tuple[bool, float]:
    first, second = make_factors(_SIDE, _USED)
    a, b = (one.to(device).to(torch.bfloat16) for one in (first, second))
    right = is_product((a @ b).cpu(), first, second)
    seconds = _time(lambda: torch.mm(a, b), _REPEATS)
    right = right and is_product((a @ b).cpu(), first, second)  # a hot device, too
    return right, round(2 * _SIDE**3 / seconds / 1e12, 1)


def _copy(device: torch.device) -> tuple[float, float]:
    host = torch.empty(_COPY, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(_COPY, dtype=torch.uint8, device=device)
    to_device = _time(lambda: there.copy_(host, non_blocking=True), 4)
    from_device = _time(lambda: host.copy_(there, non_blocking=True), 4)
    return round(_COPY / to_device / 1e9, 1), round(_COPY / from_device / 1e9, 1)


def _hold(device: torch.device) -> bool:
    """Whether memory holds a pattern, and its inverse."""
    free, _ = torch.cuda.mem_get_info(device)
    words = min(_PATTERN, free // 2) // 8 // 2  # the pattern to compare with lies on the device as well
    pattern = torch.arange(words, dtype=torch.int64, device=device) * 0x5DEECE66D + 0xB
    held = pattern.clone()
    right = bool(torch.equal(held, pattern))
    held.bitwise_not_()
    return right and bool(torch.equal(held, pattern.bitwise_not_()))


def _time(function: Callable[[], object], repeats: int) -> float:
    function()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        function()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeats


def main() -> None:
    for index in range(torch.cuda.device_count()):
        sys.stdout.write(json.dumps(asdict(probe(index))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
