"""Horovod's interface for PyTorch on torch.distributed, for scripts that were written for it:

    import elasticjob.compat.horovod as hvd  # instead of horovod.torch

Start the script with torchrun or `elasticjob-run` instead of `horovodrun`; Horovod itself is not needed. Names,
arguments and results are those of Horovod 0.28. Whatever is not here raises an error with its name: see
docs/horovod.md.

Horovod finds out by name which tensors of the ranks belong together. Here, as everywhere in torch.distributed, all
ranks make the same calls in the same order; `name` is accepted and not used. The optimizer does so by itself.
"""

from __future__ import annotations

from typing import Any

from elasticjob.compat.horovod import elastic as elastic
from elasticjob.compat.horovod.calls import Adasum as Adasum
from elasticjob.compat.horovod.calls import Average as Average
from elasticjob.compat.horovod.calls import Compression as Compression
from elasticjob.compat.horovod.calls import Max as Max
from elasticjob.compat.horovod.calls import Min as Min
from elasticjob.compat.horovod.calls import Product as Product
from elasticjob.compat.horovod.calls import Sum as Sum
from elasticjob.compat.horovod.calls import allgather as allgather
from elasticjob.compat.horovod.calls import allgather_async as allgather_async
from elasticjob.compat.horovod.calls import allreduce as allreduce
from elasticjob.compat.horovod.calls import allreduce_ as allreduce_
from elasticjob.compat.horovod.calls import allreduce_async as allreduce_async
from elasticjob.compat.horovod.calls import allreduce_async_ as allreduce_async_
from elasticjob.compat.horovod.calls import barrier as barrier
from elasticjob.compat.horovod.calls import broadcast as broadcast
from elasticjob.compat.horovod.calls import broadcast_ as broadcast_
from elasticjob.compat.horovod.calls import broadcast_async as broadcast_async
from elasticjob.compat.horovod.calls import broadcast_async_ as broadcast_async_
from elasticjob.compat.horovod.calls import grouped_allreduce as grouped_allreduce
from elasticjob.compat.horovod.calls import grouped_allreduce_ as grouped_allreduce_
from elasticjob.compat.horovod.calls import grouped_allreduce_async as grouped_allreduce_async
from elasticjob.compat.horovod.calls import grouped_allreduce_async_ as grouped_allreduce_async_
from elasticjob.compat.horovod.calls import poll as poll
from elasticjob.compat.horovod.calls import synchronize as synchronize
from elasticjob.compat.horovod.objects import allgather_object as allgather_object
from elasticjob.compat.horovod.objects import broadcast_object as broadcast_object
from elasticjob.compat.horovod.objects import broadcast_optimizer_state as broadcast_optimizer_state
from elasticjob.compat.horovod.objects import broadcast_parameters as broadcast_parameters
from elasticjob.compat.horovod.optimizer import DistributedOptimizer as DistributedOptimizer
from elasticjob.compat.horovod.world import ccl_built as ccl_built
from elasticjob.compat.horovod.world import cross_rank as cross_rank
from elasticjob.compat.horovod.world import cross_size as cross_size
from elasticjob.compat.horovod.world import cuda_built as cuda_built
from elasticjob.compat.horovod.world import ddl_built as ddl_built
from elasticjob.compat.horovod.world import global_process_set as global_process_set
from elasticjob.compat.horovod.world import gloo_built as gloo_built
from elasticjob.compat.horovod.world import gloo_enabled as gloo_enabled
from elasticjob.compat.horovod.world import init as init
from elasticjob.compat.horovod.world import is_initialized as is_initialized
from elasticjob.compat.horovod.world import local_rank as local_rank
from elasticjob.compat.horovod.world import local_size as local_size
from elasticjob.compat.horovod.world import mpi_built as mpi_built
from elasticjob.compat.horovod.world import mpi_enabled as mpi_enabled
from elasticjob.compat.horovod.world import mpi_threads_supported as mpi_threads_supported
from elasticjob.compat.horovod.world import nccl_built as nccl_built
from elasticjob.compat.horovod.world import rank as rank
from elasticjob.compat.horovod.world import rocm_built as rocm_built
from elasticjob.compat.horovod.world import shutdown as shutdown
from elasticjob.compat.horovod.world import size as size

_INSTEAD = {
    "ProcessSet": "use a group of torch.distributed: World.subgroup of elasticjob.init()",
    "SyncBatchNorm": "use torch.nn.SyncBatchNorm.convert_sync_batchnorm, on GPUs",
    "add_process_set": "use a group of torch.distributed: World.subgroup of elasticjob.init()",
    "alltoall": "use torch.distributed.all_to_all_single",
    "grouped_allgather": "call allgather for each tensor",
    "grouped_reducescatter": "use torch.distributed.reduce_scatter_tensor for each tensor",
    "join": "give all ranks equally many batches, for example with elasticjob.ElasticDistributedSampler",
    "reducescatter": "use torch.distributed.reduce_scatter_tensor",
    "remove_process_set": "use a group of torch.distributed: World.subgroup of elasticjob.init()",
    "run": "start the script with torchrun or elasticjob-run; an elastic function is hvd.elastic.run",
    "sparse_allreduce": "call allreduce with tensor.to_dense()",
    "start_timeline": "use torch.profiler",
    "stop_timeline": "use torch.profiler",
}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    instead = _INSTEAD.get(name.removesuffix("_").removesuffix("_async"), "see docs/horovod.md for what there is")
    raise AttributeError(f"hvd.{name} of Horovod is not in elasticjob.compat.horovod: {instead}.")
