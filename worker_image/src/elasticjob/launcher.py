"""The main part of `elasticjob-run`, once torch is imported: torch's launch, with workers from a fork server.

Outside of an ElasticJob, or with another rendezvous backend, it behaves like torchrun.
"""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Sequence
from typing import Any

from torch.distributed import run as torchrun
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rendezvous_registry

from elasticjob import env, rendezvous
from elasticjob.agent.handler import ElasticJobRendezvous
from elasticjob.launch import fork_server


def main(arguments: Sequence[str], server: fork_server.ForkServer) -> None:
    """Launch with these arguments; workers come from the fork server if possible."""
    args = torchrun.get_args_parser().parse_args(arguments)
    if args.standalone or args.rdzv_backend != env.BACKEND:
        if env.has_hub(os.environ) and not args.standalone and args.rdzv_backend == "static":
            args.rdzv_backend = env.BACKEND  # torchrun's default, overridden because the pod belongs to an ElasticJob
        else:
            server.close()
            record(torchrun.run)(args)
            return
    launch(args, server)


@record
def launch(args: Any, server: fork_server.ForkServer) -> None:
    """Run the agent until the job, or this pod's part in it, ends."""
    config, command, command_args = torchrun.config_from_args(args)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = getattr(config, "signals_to_handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")
    rendezvous.register()  # torch before 2.6 does not load entry points
    handler = rendezvous_registry.get_rendezvous_handler(
        RendezvousParameters(
            backend=config.rdzv_backend,
            endpoint=config.rdzv_endpoint,
            run_id=config.run_id or str(uuid.uuid4()),
            min_nodes=config.min_nodes,
            max_nodes=config.max_nodes,
            local_addr=config.local_addr,
            **config.rdzv_configs,
        )
    )
    if isinstance(handler, ElasticJobRendezvous):
        handler.adopt(server)
    agent = LocalElasticAgent(
        spec=_build_spec(config, command, tuple(command_args), handler),
        logs_specs=config.logs_specs,  # type: ignore[arg-type]
        start_method=config.start_method,
        log_line_prefix_template=config.log_line_prefix_template,
    )
    try:
        result = agent.run()
        if result is not None and result.is_failed():
            raise ChildFailedError(name=str(command), failures=result.failures)
    except SignalException as stopped:
        raise SystemExit(128 + int(stopped.sigval)) from None
    finally:
        handler.shutdown()


def _build_spec(config: Any, command: Any, args: tuple[str, ...], handler: Any) -> WorkerSpec:
    """A WorkerSpec with every field that both this version of torch and the configuration have."""
    values: dict[str, Any] = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(WorkerSpec)
        if hasattr(config, field.name)
    }
    values |= {
        "local_world_size": config.nproc_per_node,
        "entrypoint": command,
        "args": args,
        "rdzv_handler": handler,
    }
    return WorkerSpec(**values)
