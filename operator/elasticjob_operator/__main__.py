"""`elasticjob-operator run`: the command line of the operator."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import click

try:
    import uvloop
except ModuleNotFoundError:  # it comes with kopf and the others that only the operator needs
    sys.exit("error: uvloop is not installed: pip install 'elasticjob-operator[operator]'")

from elasticjob_operator import __version__
from elasticjob_operator.api import bounds, crd, names
from elasticjob_operator.api.building import build_models
from elasticjob_operator.errors import UsageError
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.lease import LONGEST_SECONDS, SHORTEST_SECONDS
from elasticjob_operator.kube.threads import hand_over_soon
from elasticjob_operator.pool.capacity import add_rates, parse_pool, parse_rate
from elasticjob_operator.pool.values import Objective
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.json_stream import DEEPEST_JSON
from elasticjob_operator.run import loop_errors
from elasticjob_operator.run.http import parse_address
from elasticjob_operator.run.job_lines import JobLines
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options
from elasticjob_operator.run.otlp import find_url, parse_headers

Value = TypeVar("Value")


def _checked(read: Callable[[str], Value], value: str) -> Value:
    """What the function reads of an option; its ValueError becomes that of the command line."""
    try:
        return read(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _checked_address(value: str) -> str:
    _checked(parse_address, value)
    return value


@click.group(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "ELASTICJOB_OPERATOR"})
@click.version_option(__version__, prog_name="elasticjob-operator")
def main() -> None:
    """The ElasticJob operator."""


@main.command()
@click.option("--namespace", "-n", "namespaces", multiple=True, help="Manage only this namespace; repeatable.")
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False), help="Default: in-cluster, else ~/.kube.")
@click.option("--context", help="Context of the kubeconfig.")
@click.option(
    "--operator-namespace",
    envvar="POD_NAMESPACE",
    default="default",
    show_default=True,
    help="Namespace of the Lease and the certificate.",
)
@click.option("--hub-host", default="0.0.0.0", show_default=True, help="Address the hub listens on.")  # noqa: S104
@click.option("--hub-port", default=8443, show_default=True, help="Port the hub listens on; 0: any free one.")
@click.option("--hub-url", default="", help="URL for the workers, ws://host:port or wss://host:port.")
@click.option("--hub-service", default="", help="[namespace/]name of the hub's Service; workers use its cluster IP.")
@click.option(
    "--pod-address", envvar="POD_IP", default="", help="Address of this replica, for the Service without selector."
)
@click.option("--tls-secret", default="", help="Secret with the hub's certificate; created if it does not exist.")
@click.option("--http-host", default="0.0.0.0", show_default=True, help="Address of health and metrics.")  # noqa: S104
@click.option("--http-port", default=8080, show_default=True, help="Port of /healthz, /readyz and /metrics.")
@click.option(
    "--metrics-address",
    default="",
    callback=lambda context, option, value: _checked_address(value),
    help="host:port for /metrics alone, or off. Default: the port of /healthz.",
)
@click.option(
    "--leader-election/--no-leader-election", default=True, show_default=True, help="Required with several replicas."
)
@click.option("--lease-name", default="elasticjob-operator", show_default=True, help="Name of the Lease.")
@click.option(
    "--lease-seconds",
    type=click.FloatRange(SHORTEST_SECONDS, LONGEST_SECONDS),
    default=10.0,
    show_default=True,
    help="Time after which a silent leader is replaced.",
)
@click.option(
    "--certificate-check-seconds",
    type=click.FloatRange(min=1),
    default=3600.0,
    show_default=True,
    help="How often the hub's certificate is checked, and renewed if that is due.",
)
@click.option("--identity", envvar="POD_NAME", default="", help="Name of this replica in the Lease.")
@click.option("--runtime-image", default="", help="Image with the injectable runtime.")
@click.option(
    "--runtime-as-volume",
    is_flag=True,
    help="Mount the runtime image in pods (Kubernetes 1.36, containerd 2.1 or CRI-O 1.33) instead of copying from it.",
)
@click.option("--worker-image", default="", help="Worker image with the runtime built in.")
@click.option("--image-pull-policy", default="IfNotPresent", show_default=True, help="For the runtime image.")
@click.option(
    "--heartbeat-timeout",
    type=click.FloatRange(1, 300),
    default=5.0,
    show_default=True,
    help="Seconds of silence after which an agent is lost.",
)
@click.option(
    "--stable-seconds",
    type=click.FloatRange(0, 86400),
    default=60.0,
    show_default=True,
    help="How long late capacity must stay before a job grows onto it.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 1024),
    default=32,
    show_default=True,
    help="Requests to the API server at a time.",
)
@click.option(
    "--max-replicas-per-job",
    type=click.IntRange(1, 100_000),
    default=bounds.Limits().replicas,
    show_default=True,
    help="Limit of pods for one job, including spares.",
)
@click.option(
    "--max-template-bytes",
    type=click.IntRange(4096, 1_500_000),
    default=bounds.Limits().template_bytes,
    show_default=True,
    help="Size limit of a job's pod template, as compact JSON.",
)
@click.option(
    "--max-pool-weight",
    type=click.IntRange(1, 1000),
    default=bounds.Limits().weight,
    show_default=True,
    help="Limit of spec.scaling.weight; a larger one counts as this.",
)
@click.option(
    "--taint-faulty-nodes",
    is_flag=True,
    help="Taint nodes on which jobs failed (PreferNoSchedule), for the pods of others; needs get and patch on nodes.",
)
@click.option(
    "--report-faulty-nodes",
    is_flag=True,
    help="Give nodes on which jobs failed a condition, for controllers that repair them; needs patch on nodes/status.",
)
@click.option(
    "--integrations",
    multiple=True,
    type=click.Choice(["kueue", "gangs"]),
    help="Work together with another controller; repeatable. kueue: jobs with a queue's label wait for their quota. "
    "gangs: PodGroups for Kubernetes' own scheduler, where they are served.",
)
@click.option(
    "--pool",
    "pools",
    multiple=True,
    default=("default=nvidia.com/gpu",),
    show_default=True,
    metavar="NAME=RESOURCE[,label=value]",
    callback=lambda context, option, values: tuple(_checked(parse_pool, value) for value in values),
    help="Devices that jobs with scaling.mode Goodput share: a resource, of the nodes with these labels; repeatable.",
)
@click.option(
    "--device-price",
    "rates",
    multiple=True,
    metavar="POOL=PRICE[,label=value]",
    callback=lambda context, option, values: tuple(_checked(parse_rate, value) for value in values),
    help="What a device of the pool's nodes with these labels costs an hour; repeatable, the first that suits counts.",
)
@click.option(
    "--pool-objective",
    type=click.Choice([objective.value for objective in Objective]),
    default=Objective.GOODPUT.value,
    show_default=True,
    callback=lambda context, option, value: Objective(value),
    help="What pools are for: the sum of speed-ups, the mean time until jobs complete, or equal shares.",
)
@click.option(
    "--otlp-endpoint",
    "otlp_url",
    default="",
    callback=lambda context, option, value: _checked(find_url, value) if value else "",
    help="Base URL of an OpenTelemetry collector (OTLP over HTTP), which gets a trace of each job. Default: none.",
)
@click.option(
    "--otlp-headers",
    envvar="OTEL_EXPORTER_OTLP_HEADERS",
    default="",
    callback=lambda context, option, value: _checked(parse_headers, value),
    help="Headers for it, name=value,...; as a variable, the process list does not show them.",
    show_envvar=True,
)
@click.option(
    "--log-format", type=click.Choice(["human", "json"]), default="human", show_default=True, help="Log lines."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Log level.",
)
def run(log_format: str, log_level: str, **options: Any) -> None:
    """Run the operator until it is stopped (SIGTERM, SIGINT) or loses its Lease."""
    set_up_logging(log_format, log_level)
    options["identity"] = f"{options['identity'] or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    options["namespaces"] = tuple(options["namespaces"])
    options["integrations"] = tuple(options["integrations"])
    try:
        options["pools"] = add_rates(options["pools"], options.pop("rates"))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--device-price") from None
    build_models()
    calm_collector()
    sys.setrecursionlimit(DEEPEST_JSON)
    hand_over_soon()
    try:
        sys.exit(uvloop.run(_run(Options(**options))))
    except (UsageError, ApiError) as error:
        raise click.ClickException(str(error)) from None


def calm_collector() -> None:
    """Lets Python look for cycles a seventieth as often.

    Its objects live long, and only kopf makes cycles, which `kube.garbage` looks for: with the defaults, a start among
    10,000 pods costs 5 % more CPU. One look at what is young is at 150,000 objects at most, some 15 ms of the
    event loop, whatever was loaded meanwhile. One at everything is rare, and takes as long as there are objects: see
    docs/operations.md. Without it, cycles of what has lived long would stay.
    """
    gc.collect()
    gc.freeze()  # what the imports made stays
    gc.set_threshold(50_000, 1, 350)


async def _run(options: Options) -> int:
    # An audit log tells the replicas apart by it.
    user_agent = f"{names.FIELD_MANAGER}/{__version__} ({options.identity})"
    try:
        api = await Api.connect(options.kubeconfig, options.context, parallel=options.parallel, user_agent=user_agent)
    except Exception as error:
        message = f"no cluster to connect to ({error}): set --kubeconfig, or run inside a cluster"
        raise UsageError(message) from None
    try:
        operator = Operator(options, api)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(loop_errors.tell)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, operator.stop)
        await operator.run()
        return 1 if operator.lost_lease else 0
    finally:
        await api.close()


@main.command("crd")
def print_crd() -> None:
    """Print the CustomResourceDefinitions."""
    click.echo("---\n".join(crd.render_crds().values()), nl=False)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(form: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)-7s %(message)s", "%H:%M:%S"))
    handler.addFilter(JobLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # kopf tells of its watches at INFO, once per start; the client of its requests at DEBUG, tokens included.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("kubernetes").setLevel(logging.WARNING)
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    os.environ.setdefault("PYTHONUNBUFFERED", "1")


if __name__ == "__main__":
    main()
