"""Notices about nodes: what clouds, autoscalers and detectors write on a node that will go, or that is broken. Pure.

A node that will go is left: its pods train elsewhere. A broken node, or one under maintenance, is only avoided by new
pods, and failures on it are not the program's: most detectors do not keep pods away from the node, and a replacement
could start there again. Whoever drains it cordons it, too, and then it is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

# Taint → who sets it, and why.
REMOVALS: Final = {
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler deletes the node",
    "DeletionCandidateOfClusterAutoscaler": "the cluster autoscaler is about to delete it",
    "karpenter.sh/disrupted": "karpenter (v1) replaces or removes it",
    "karpenter.sh/disruption": "karpenter (before v1) replaces or removes it",
    "aws-node-termination-handler/spot-itn": "AWS interrupts the spot instance in two minutes",
    "aws-node-termination-handler/scheduled-maintenance": "AWS maintains the instance",
    "aws-node-termination-handler/asg-lifecycle-termination": "its autoscaling group ends the instance",
    "aws-node-termination-handler/rebalance-recommendation": "AWS expects to interrupt the spot instance",
    "cloud.google.com/impending-node-termination": "GKE ends the node: spot, preemptible, or maintenance",
    "kubernetes.azure.com/scalesetpriority-eviction": "Azure evicts the spot instance",
    "remediator.aks.microsoft.com/unschedulable": "AKS drains the node before a scheduled event",
    "node.kubernetes.io/out-of-service": "an administrator took it out of service",
    "elasticjob.dev/leaving": "an administrator announces its removal",
}
# NoExecute taints that the node controller sets on an unresponsive node: its pods are lost, not leaving.
_DEAD: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})

# (condition, status) → who sets it, and why.
PROBLEMS: Final = {
    ("KernelDeadlock", "True"): "node problem detector: the kernel hangs",
    ("ReadonlyFilesystem", "True"): "node problem detector: a file system became read-only",
    ("FilesystemCorruptionProblem", "True"): "node problem detector of AKS: a file system is corrupt",
    ("GPUMissing", "True"): "node problem detector of AKS: fewer GPUs than the machine should have",
    ("KernelReady", "False"): "EKS node monitoring agent: a kernel problem",
    ("StorageReady", "False"): "EKS node monitoring agent: a storage problem",
    ("NetworkingReady", "False"): "EKS node monitoring agent: a network problem",
    ("AcceleratedHardwareReady", "False"): "EKS node monitoring agent: a broken GPU or accelerator",
    ("GpuMemWatch", "True"): "NVSentinel: memory of a GPU",
    ("GpuPcieWatch", "True"): "NVSentinel: the PCIe link of a GPU",
    ("GpuSmWatch", "True"): "NVSentinel: a multiprocessor of a GPU",
    ("GpuNvlinkWatch", "True"): "NVSentinel: an NVLink connection",
    ("GpuMcuWatch", "True"): "NVSentinel: the microcontroller of a GPU",
    ("GpuPmuWatch", "True"): "NVSentinel: the power management of a GPU",
    ("GpuInforomWatch", "True"): "NVSentinel: the InfoROM of a GPU is corrupt",
    ("GpuDriverWatch", "True"): "NVSentinel: the driver of the GPUs",
    ("SysLogsXIDError", "True"): "NVSentinel: the kernel's log has a fatal XID error",
    ("SysLogsSXIDError", "True"): "NVSentinel: the kernel's log has a fatal error of an NVSwitch",
    ("SysLogsGPUFallenOff", "True"): "NVSentinel: a GPU has fallen off the bus",
    ("NVSwitchFatalError", "True"): "NVSentinel: a fatal error of an NVSwitch",
    ("NVSwitchDown", "True"): "NVSentinel: an NVSwitch does not respond",
    ("MaintenancePlanned", "True"): "an administrator, from Kubernetes 1.37 on: the node is going to be changed",
    ("MaintenanceInProgress", "True"): "an administrator, from Kubernetes 1.37 on: the node is being changed",
    ("DrainInProgress", "True"): "an administrator, from Kubernetes 1.37 on: the node is being drained",
    ("Drained", "True"): "an administrator, from Kubernetes 1.37 on: the node has been drained",
    ("GracefulNodeShutdownInProgress", "True"): "the kubelet, from Kubernetes 1.37 on: the node shuts down",
}


def find_removal(taints: Iterable[Mapping[str, Any]]) -> str:
    """The key of the first taint that says that the node will go; "" if none does. Any NoExecute taint evicts pods."""
    for taint in taints:
        key = str(taint.get("key", ""))
        if key in REMOVALS or (taint.get("effect") == "NoExecute" and key not in _DEAD):
            return key
    return ""


def find_problem(conditions: Iterable[Mapping[str, Any]]) -> str:
    """The first condition that says that the node is broken, `type=status`; "" if none does."""
    for condition in conditions:
        type, status = str(condition.get("type", "")), str(condition.get("status", ""))
        if (type, status) in PROBLEMS:
            return f"{type}={status}"
    return ""
