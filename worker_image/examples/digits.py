"""Train a small convolutional network on scikit-learn's handwritten digits (1,797 real images).

An ordinary DistributedDataParallel script: it imports torch and nothing of ElasticJob.
Run it with `python digits.py`, `torchrun --nproc-per-node=2 digits.py` or in an ElasticJob.

What makes it safe to stop and restart at another size:
- the batch that the world takes together has a fixed size; each rank takes its share of it;
- the order of the samples depends on the seed and the epoch, not on the number of ranks;
- rank 0 saves every few steps, by rename, and sends what it loaded to the others, so that only rank 0
  needs the directory.

Each rank prints one JSON object a line. `event` is start, step, epoch or done.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=48, help="of the whole world, whatever its size")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint-dir", type=Path, default=None, help="without it nothing is saved")
    parser.add_argument("--checkpoint-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints that are kept")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="least time of a step")
    return parser.parse_args()


def set_up() -> torch.device:
    """Join the world that the launcher describes, or be a world of one."""
    use_cuda = torch.cuda.is_available() and dist.is_nccl_available()
    device = torch.device("cpu")
    if use_cuda:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    backend = "nccl" if use_cuda else "gloo"
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if "RANK" not in os.environ:
        os.environ.update(alone)
    dist.init_process_group(backend)
    return device


def find_digits() -> Path:
    """The file that comes with scikit-learn. Importing the package to read it would double the time of a restart."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the data comes with scikit-learn, which is not installed: pip install scikit-learn")
    return Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"


def load_data(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images and labels, test images and labels. Every fifth image is for the test."""
    table = torch.from_numpy(numpy.loadtxt(find_digits(), delimiter=",", dtype=numpy.float32)).to(device)
    x, y = (table[:, :-1] / 16).reshape(-1, 1, 8, 8), table[:, -1].long()
    is_test = torch.arange(len(x), device=device) % 5 == 0
    return x[~is_test], y[~is_test], x[is_test], y[is_test]


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def save(directory: Path, state: dict[str, Any], keep: int) -> None:
    """Write under another name, flush, rename: a reader sees a whole file or none."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"step-{state['step']:08d}.pt"
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)
    for old in sorted(directory.glob("step-*.pt"))[:-keep]:
        old.unlink(missing_ok=True)


def load(directory: Path) -> dict[str, Any] | None:
    """The newest checkpoint that can be read; a broken one is named and skipped."""
    for path in sorted(directory.glob("step-*.pt"), reverse=True):
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            return state
        except Exception as error:  # torch.load raises nearly anything on bytes that are not a checkpoint
            print(f"{path} cannot be read ({type(error).__name__}); trying the one before", file=sys.stderr)
    return None


def accuracy_on(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Each rank tests its share; the counts are added up."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model.eval()
    with torch.no_grad():
        hits = (model(x[rank::world_size]).argmax(1) == y[rank::world_size]).sum()
    model.train()
    dist.all_reduce(hits)
    return float(hits.item()) / len(x)


def train(args: argparse.Namespace, device: torch.device) -> None:
    env = os.environ
    rank, world_size = dist.get_rank(), dist.get_world_size()
    generation = int(env.get("ELASTICJOB_GENERATION") or env.get("TORCHELASTIC_RESTART_COUNT") or 0)

    def report(event: str, **values: Any) -> None:
        where = {"event": event, "generation": generation, "rank": rank, "worldSize": world_size}
        # One write a line: the ranks of a node share the output.
        sys.stdout.write(json.dumps(where | values | {"time": round(time.time(), 3)}) + "\n")
        sys.stdout.flush()

    torch.manual_seed(args.seed)
    train_x, train_y, test_x, test_y = load_data(device)
    raw_model = build_model().to(device)
    optimizer = torch.optim.AdamW(raw_model.parameters(), lr=args.learning_rate)
    steps_per_epoch = len(train_x) // args.batch_size

    step = 0
    loaded: list[Any] = [load(args.checkpoint_dir) if args.checkpoint_dir and rank == 0 else None]
    dist.broadcast_object_list(loaded, src=0)
    if loaded[0] is not None:
        raw_model.load_state_dict(loaded[0]["model"])
        optimizer.load_state_dict(loaded[0]["optimizer"])
        step = loaded[0]["step"]
    report("start", epoch=step // steps_per_epoch, step=step, pid=os.getpid())

    model = DistributedDataParallel(raw_model, device_ids=[device.index] if device.type == "cuda" else None)
    accuracy = None
    while step < args.epochs * steps_per_epoch:
        started = time.monotonic()
        epoch, position = divmod(step, steps_per_epoch)
        order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(args.seed + epoch))
        batch = order[position * args.batch_size : (position + 1) * args.batch_size]
        mine = batch[rank::world_size].to(device)
        output = model(train_x[mine])
        # DDP averages over the ranks. Shares may differ by one sample, so weigh by share: the result is
        # the mean over the whole batch at every world size.
        loss_sum = nn.functional.cross_entropy(output, train_y[mine], reduction="sum")
        optimizer.zero_grad()
        torch.autograd.backward(loss_sum * world_size / len(batch))
        optimizer.step()
        step += 1
        loss = loss_sum.detach() / len(batch)
        dist.all_reduce(loss)
        hits = (output.argmax(1) == train_y[mine]).sum().item() / max(1, len(mine))
        if args.step_seconds:
            time.sleep(max(0.0, args.step_seconds - (time.monotonic() - started)))
        report("step", epoch=epoch, step=step, loss=round(loss.item(), 5), accuracy=round(hits, 4))
        if step % steps_per_epoch == 0:
            accuracy = accuracy_on(model, test_x, test_y)
            report("epoch", epoch=epoch, step=step, loss=round(loss.item(), 5), accuracy=round(accuracy, 4))
        is_last = step == args.epochs * steps_per_epoch
        if args.checkpoint_dir and rank == 0 and (step % args.checkpoint_every == 0 or is_last):
            state = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            save(args.checkpoint_dir, state, args.keep)
    if accuracy is None:  # resumed from a finished run
        accuracy = accuracy_on(model, test_x, test_y)
    report("done", epoch=args.epochs, step=step, loss=None, accuracy=round(accuracy, 4))


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)  # ranks share the machine; more threads only get in each other's way
    device = set_up()
    train(args, device)
    dist.barrier()  # nobody hangs up while another still listens
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
