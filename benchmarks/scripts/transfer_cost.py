"""What it takes to give the state of a session to joiners: seconds, and what the busiest rank sends.

    torchrun --nproc-per-node 4 benchmarks/scripts/transfer_cost.py --joiners 1 --mib 100

The last ranks have nothing, the others have the whole state, in tensors of 8 MiB. Medians of five transfers over gloo.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist

from elasticjob.sessions import transfer

TENSOR = 2 << 20  # numbers of four bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--joiners", type=int, default=1)
    parser.add_argument("--mib", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if not 0 < args.joiners < size:
        raise SystemExit(f"--joiners is {args.joiners}: give 1 to {size - 1}, fewer than the ranks")
    is_joiner = rank >= size - args.joiners
    state = {str(index): torch.full((TENSOR,), float(1 + index)) for index in range(max(1, args.mib // 8))}
    seconds = []
    for _ in range(5):
        if is_joiner:
            for tensor in state.values():
                tensor.zero_()
        inventory = transfer.take_inventory({"model": state})
        dist.barrier()
        began = time.monotonic()
        transfer.Exchange(rank, 0, dist.group.WORLD, torch.device("cpu"), not is_joiner).run(inventory)
        dist.barrier()
        seconds.append(time.monotonic() - began)
        assert all(tensor[0].item() == float(1 + int(index)) for index, tensor in state.items())
    if rank == 0:
        mib = len(state) * TENSOR * 4 / 2**20
        line = {"ranks": size, "joiners": args.joiners, "MiB": mib, "seconds": round(statistics.median(seconds), 4)}
        print(json.dumps(line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
