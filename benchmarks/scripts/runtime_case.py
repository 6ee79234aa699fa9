"""Single-process measurements of the runtime, one case per process: prints one JSON list of seconds for each side.

Each measurement alternates ours and the peer. Imports are inside the cases, so that an import is measured only where it
is the subject.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

Sides = dict[str, list[float]]


def alternate(repeats: int, **sides: Callable[[], object]) -> Sides:
    found: Sides = {name: [] for name in sides}
    for _ in range(repeats):
        for name, call in sides.items():
            begin = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - begin)
    return found


def report(repeats: int) -> Sides:
    """elasticjob.report() against a disabled logging call, which every step can afford."""
    import logging

    import elasticjob

    logger, calls = logging.getLogger("benchmark"), 2000
    loss = 0.25

    def ours() -> None:
        for step in range(calls):
            elasticjob.report(step=step, total=calls, loss=loss)

    def theirs() -> None:
        for step in range(calls):
            logger.debug("step %d of %d, loss %f", step, calls, loss)

    ours()
    return {name: [t / calls for t in times] for name, times in alternate(repeats, ours=ours, peer=theirs).items()}


def _model(megabytes: int) -> object:
    import torch

    layers = [torch.nn.Linear(1024, 1024, bias=False) for _ in range(max(1, megabytes // 4))]
    return torch.nn.Sequential(*layers)


def checkpoint(repeats: int, megabytes: int, what: str) -> Sides:
    """Our save (until it returns, or until it is on disk) and restore, against torch.save, torch.load and the disk."""
    import torch

    import elasticjob

    elasticjob.init()
    model = _model(megabytes)
    assert isinstance(model, torch.nn.Module)
    block = os.urandom(1 << 20)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        keeper = elasticjob.Checkpointer(Path(directory) / "ours", model, keep=1)
        plain, raw = Path(directory) / "plain.pt", Path(directory) / "raw"
        steps = iter(range(1, 10_000))

        def save_blocking() -> None:
            keeper.save(next(steps))

        def save_all() -> None:
            keeper.save(next(steps), wait=True)

        def torch_save() -> None:
            with plain.open("wb") as stream:
                torch.save(model.state_dict(), stream)
                stream.flush()
                os.fsync(stream.fileno())

        def torch_load() -> None:
            model.load_state_dict(torch.load(plain, weights_only=True))

        def disk() -> None:
            with raw.open("wb") as stream:
                for _ in range(megabytes):
                    stream.write(block)
                stream.flush()
                os.fsync(stream.fileno())

        save_all()
        torch_save()
        if what == "blocking":
            found: Sides = {"ours": [], "peer": []}
            for _ in range(repeats):
                for name, call in (("ours", save_blocking), ("peer", torch_save)):
                    begin = time.perf_counter()
                    call()
                    found[name].append(time.perf_counter() - begin)
                    keeper.wait()
            return found
        if what == "save":
            return alternate(repeats, ours=save_all, peer=torch_save)
        if what == "disk":
            return alternate(repeats, ours=save_all, peer=disk)
        return alternate(repeats, ours=keeper.restore, peer=torch_load)


def sampler(repeats: int) -> Sides:
    """One epoch of indices for one of four ranks, against torch's DistributedSampler and BatchSampler."""
    from torch.utils.data import BatchSampler, DistributedSampler

    import elasticjob

    length, batch, world = 200_000, 256, 4
    data = range(length)

    def ours() -> None:
        one = elasticjob.ElasticDistributedSampler(length, global_batch_size=batch * world, rank=1, world_size=world)
        for _ in one:
            pass

    def theirs() -> None:
        plain: DistributedSampler[int] = DistributedSampler(data, num_replicas=world, rank=1)  # type: ignore[arg-type]
        for _ in BatchSampler(plain, batch, drop_last=False):
            pass

    return alternate(repeats, ours=ours, peer=theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=64)
    args = parser.parse_args()
    name, _, what = args.case.partition(":")
    if name == "report":
        found = report(args.repeats)
    elif name == "sampler":
        found = sampler(args.repeats)
    else:
        found = checkpoint(args.repeats, args.megabytes, what)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
