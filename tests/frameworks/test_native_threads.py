"""Polars and gRPC, whose threads do not survive a fork, in a script under the warm start: no start hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks.environment import BIN, require
from operator_fixture import ROOT
from worker.conftest import make_hub, make_pods

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (BIN / "torchrun").exists(), reason="no environment with the libraries: make frameworks"),
]
RESTARTS = 20
OWN = """
import grpc
import polars as pl

TABLE = pl.DataFrame({"step": range(1000)}).lazy().group_by(pl.col("step") % 7).agg(pl.len()).sort("step").collect()
CHANNEL = grpc.insecure_channel("127.0.0.1:1")
"""
SCRIPT = """
import os, time
from pathlib import Path

import own
import grpc
import polars as pl
import torch, torch.distributed as dist

def serve():
    from concurrent.futures import ThreadPoolExecutor
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
        "doubles", {"Twice": grpc.unary_unary_rpc_method_handler(lambda request, context: request * 2)}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/doubles/Twice")

def main():
    dist.init_process_group("gloo")
    generation = int(os.environ["ELASTICJOB_GENERATION"])
    assert own.TABLE["len"].sum() == 1000
    server, call = serve()
    assert call(b"ab", timeout=30) == b"abab"
    frame = pl.DataFrame({"a": range(100_000)})
    assert frame.lazy().filter(pl.col("a") % 2 == 0).select(pl.col("a").sum()).collect().item() == 2499950000
    Path(f"trains-{generation}").touch()
    while True:
        dist.all_reduce(torch.ones(1))
        frame.lazy().sort("a", descending=True).head(5).collect()
        time.sleep(0.05)

if __name__ == "__main__":
    main()
"""


def test_twenty_starts_of_polars_and_grpc(tmp_path: Path) -> None:
    require("polars", "grpc", "torch")
    (script := tmp_path / "script").mkdir()
    (script / "own.py").write_text(OWN)
    (script / "train.py").write_text(SCRIPT)
    with make_hub() as hub, make_pods(hub, tmp_path) as pods:
        hub.set_size(1)
        environment: dict[str, str | None] = {
            "PATH": f"{BIN}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT / "worker_image/src"),
        }
        pod = pods.start("pod-0", str(script / "train.py"), launcher=str(BIN / "torchrun"), env=environment)
        for generation in range(1, RESTARTS + 2):
            hub.wait_for(
                lambda n=generation: any(tmp_path.rglob(f"trains-{n}")),  # type: ignore[misc]
                timeout=120,
                what=f"start {generation} gets to its first step\n{pod.log[-3000:]}",
            )
            if generation <= RESTARTS:
                hub.order_regroup("pod-0", generation)
                hub.call(lambda: setattr(hub.world, "over", True))
        assert not hub.failures()
