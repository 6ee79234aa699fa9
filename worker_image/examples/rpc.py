"""torch.distributed.rpc from the variables of the launcher: rank 0 asks, the others compute.

RPC has no regroup: its world is fixed. In an ElasticJob set minReplicas = maxReplicas, so that a lost pod stops the
world until its replacement is there, and start the work from a checkpoint.
"""

from __future__ import annotations

import json
import os
import socket

import torch
from torch.distributed import rpc

from elasticjob.context import context, network


def square_sum(numbers: torch.Tensor) -> torch.Tensor:
    """Runs on the rank that is asked."""
    return (numbers**2).sum()


def main() -> None:
    here = context.current()
    wanted = network.find_interface(
        network.read_interfaces(), here.pod_ip, here.master_address, here.world_size == here.local_world_size
    )
    if wanted:
        os.environ.setdefault("TP_SOCKET_IFNAME", wanted)  # RPC's transport has its own variable
        os.environ.setdefault("GLOO_SOCKET_IFNAME", wanted)
    port = here.master_port or _free_port()
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://{here.master_address}:{port}", rpc_timeout=60)
    rpc.init_rpc(  # type: ignore[no-untyped-call]
        f"worker{here.rank}", rank=here.rank, world_size=here.world_size, rpc_backend_options=options
    )
    if here.rank == 0:
        parts = torch.arange(12.0).chunk(here.world_size)
        futures = [rpc.rpc_async(f"worker{rank}", square_sum, (part,)) for rank, part in enumerate(parts)]
        total = sum(future.wait().item() for future in futures)
        print(json.dumps({"rank": 0, "worldSize": here.world_size, "total": total}), flush=True)
    rpc.shutdown()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
