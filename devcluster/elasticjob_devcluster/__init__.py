"""A real Kubernetes control plane on one machine, with nodes that run pods as local processes."""

from elasticjob_devcluster.api.drain import DrainTimeout
from elasticjob_devcluster.api.kube import Kube, KubeError
from elasticjob_devcluster.api.readiness import wait_until
from elasticjob_devcluster.cluster import Cluster
from elasticjob_devcluster.config import NodeSpec
from elasticjob_devcluster.controlplane.binaries import BinariesUnavailable
from elasticjob_devcluster.flags import Tuning
from elasticjob_devcluster.state import ClusterError

__version__ = "0.1.0"

__all__ = [
    "BinariesUnavailable",
    "Cluster",
    "ClusterError",
    "DrainTimeout",
    "Kube",
    "KubeError",
    "NodeSpec",
    "Tuning",
    "__version__",
    "wait_until",
]
