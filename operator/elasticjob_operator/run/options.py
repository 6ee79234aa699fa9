"""The operator's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticjob_operator.api import bounds
from elasticjob_operator.membership import member_health
from elasticjob_operator.pool.capacity import Pool
from elasticjob_operator.pool.values import Objective


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed command line."""

    namespaces: tuple[str, ...] = ()  # empty: the whole cluster
    kubeconfig: str | None = None
    context: str | None = None
    operator_namespace: str = "default"
    hub_host: str = "0.0.0.0"  # noqa: S104 - pods reach the hub from everywhere
    hub_port: int = 8443
    hub_url: str = ""  # URL for the pods; empty: from hub_service, else this machine's address
    hub_service: str = ""
    pod_address: str = ""  # endpoint of the hub's Service while this replica leads
    tls_secret: str = ""
    http_host: str = "0.0.0.0"  # noqa: S104
    http_port: int = 8080
    metrics_address: str = ""  # host:port or "off"; empty: on the port of the probes
    leader_election: bool = True
    lease_name: str = "elasticjob-operator"
    lease_seconds: float = 10.0
    certificate_check_seconds: float = 3600.0
    identity: str = ""
    runtime_image: str = ""
    runtime_as_volume: bool = False  # mount the runtime image where the cluster can, instead of copying from it
    worker_image: str = ""
    image_pull_policy: str = "IfNotPresent"
    heartbeat_timeout: float = 5.0
    stable_seconds: float = 60.0
    parallel: int = 32
    max_replicas_per_job: int = bounds.Limits().replicas
    max_template_bytes: int = bounds.Limits().template_bytes
    max_pool_weight: int = bounds.Limits().weight
    integrations: tuple[str, ...] = ()
    taint_faulty_nodes: bool = False
    report_faulty_nodes: bool = False
    pools: tuple[Pool, ...] = (Pool("default", "nvidia.com/gpu"),)
    otlp_url: str = ""  # where spans are sent; empty: nowhere
    otlp_headers: Mapping[str, str] = field(default_factory=dict)
    pool_objective: Objective = Objective.GOODPUT
    settings: member_health.Settings = field(default_factory=member_health.Settings)

    @property
    def release(self) -> str:
        """What all replicas have in common, and operators of other releases have not."""
        return f"{self.operator_namespace}/{self.lease_name}"
