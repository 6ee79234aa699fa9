"""A real Kubernetes control plane on one machine, with nodes that run pods as local processes."""

from elasticjob_devcluster.binaries import BinariesUnavailable
from elasticjob_devcluster.cluster import Cluster, ClusterError, wait_until
from elasticjob_devcluster.config import NodeSpec
from elasticjob_devcluster.drain import DrainTimeout
from elasticjob_devcluster.flags import Tuning
from elasticjob_devcluster.kube import Kube, KubeError

__all__ = [
    "BinariesUnavailable",
    "Cluster",
    "ClusterError",
    "DrainTimeout",
    "Kube",
    "KubeError",
    "NodeSpec",
    "Tuning",
    "wait_until",
]
