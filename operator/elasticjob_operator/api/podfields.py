"""The fields of a pod template, and of what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from elasticjob_operator.api.podtemplate import PREFERRED, REQUIRED

_AFFINITY: Final = f"{PREFERRED} {REQUIRED}"
# Kind of object → its fields, in Kubernetes 1.36.
_FIELDS: Final = {
    "template": "apiVersion kind metadata spec",
    "pod": (
        "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks "
        "ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride "
        "imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy priority priorityClassName "
        "readinessGates resourceClaims resources restartPolicy runtimeClassName schedulerName schedulingGates "
        "schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace "
        "subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes"
    ),
    "container": (
        "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy "
        "resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce "
        "terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts workingDir"
    ),
    "resources": "claims limits requests",
    "securityContext of a pod": (
        "appArmorProfile fsGroup fsGroupChangePolicy runAsGroup runAsNonRoot runAsUser seLinuxChangePolicy "
        "seLinuxOptions seccompProfile supplementalGroups supplementalGroupsPolicy sysctls windowsOptions"
    ),
    "securityContext": (
        "allowPrivilegeEscalation appArmorProfile capabilities privileged procMount readOnlyRootFilesystem runAsGroup "
        "runAsNonRoot runAsUser seLinuxOptions seccompProfile windowsOptions"
    ),
    "volume": (
        "awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir ephemeral fc "
        "flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi name nfs persistentVolumeClaim "
        "photonPersistentDisk portworxVolume projected quobyte rbd scaleIO secret storageos vsphereVolume"
    ),
    "mount": "mountPath mountPropagation name readOnly recursiveReadOnly subPath subPathExpr",
    "variable": "name value valueFrom",
    "source": "configMapRef prefix secretRef",
    "toleration": "effect key operator tolerationSeconds value",
    "port": "containerPort hostIP hostPort name protocol",
    "affinity": "nodeAffinity podAffinity podAntiAffinity",
    "affinity to nodes": _AFFINITY,
    "affinity to pods": _AFFINITY,
    "selector of nodes": "nodeSelectorTerms",
    "term of nodes": "matchExpressions matchFields",
    "weight of nodes": "preference weight",
    "term of pods": "labelSelector matchLabelKeys mismatchLabelKeys namespaceSelector namespaces topologyKey",
    "weight of pods": "podAffinityTerm weight",
    "selector of labels": "matchExpressions matchLabels",
    "spread": (
        "labelSelector matchLabelKeys maxSkew minDomains nodeAffinityPolicy nodeTaintsPolicy topologyKey "
        "whenUnsatisfiable"
    ),
    "DNS": "nameservers options searches",
    "probe": (
        "exec failureThreshold grpc httpGet initialDelaySeconds periodSeconds successThreshold tcpSocket "
        "terminationGracePeriodSeconds timeoutSeconds"
    ),
    "lifecycle": "postStart preStop stopSignal",
    "hook": "exec httpGet sleep tcpSocket",
    "capabilities": "add drop",
    "folder": "medium sizeLimit",
    "origin": "configMapKeyRef fieldRef fileKeyRef resourceFieldRef secretKeyRef",
}
POD_FIELDS: Final[Mapping[str, frozenset[str]]] = {kind: frozenset(names.split()) for kind, names in _FIELDS.items()}
