"""The table of docs/operations.md: what people write, what the job then says, and what to do.

What it says is what the judge of the manifests looks for, so that the page cannot promise other words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from chaos.manifest_maker import NEIGHBOURS, PARTS
from chaos.manifest_texts import TEXTS

# Name of the part, neighbour or whole manifest: what is written, and the remedy.
ADVICE: Final = {
    "configmap-volume-missing": ("a volume of a ConfigMap that is not there", "create it; the pod then starts"),
    "configmap-key-missing": ("a key that the ConfigMap of a volume has not", "add the key"),
    "secret-volume-missing": ("a volume of a Secret that is not there", "create it"),
    "pvc-missing": ("a claim that is not there", "create the PersistentVolumeClaim"),
    "pvc-unbound": ("a claim that nothing provisions", "check its storage class"),
    "csi-driver-missing": ("a CSI driver that the node has not", "install the driver on those nodes"),
    "hostpath-missing": ("a `hostPath` that the node has not", "create it, or use `DirectoryOrCreate`"),
    "env-from-missing": ("`envFrom` a Secret that is not there", "create it, or set `optional`"),
    "service-account-missing": ("a ServiceAccount that is not there", "create it"),
    "priority-class-missing": ("a PriorityClass that is not there", "create it, or correct the name"),
    "runtime-class-missing": ("a RuntimeClass that is not there", "create it, or correct the name"),
    "scheduler-missing": ("a `schedulerName` that nobody serves", "start that scheduler, or leave the field out"),
    "scheduling-gate": ("`schedulingGates`", "remove the gate, or start the controller that does"),
    "node-selector": ("a `nodeSelector` that no node fits", "label a node, or correct the selector"),
    "node-name-missing": ("a `nodeName` that is no node", "leave it out: the scheduler chooses"),
    "node-refuses": ("nodes that refuse the pod", "look at the node; the job tries others, less and less often"),
    "too-many-gpus": ("more GPUs than any node has", "ask for fewer a pod, and for more replicas"),
    "claim-template-missing": ("a ResourceClaimTemplate that is not there", "create it, or correct the name"),
    "pod-resources-gpu": ("devices in the `resources` of the whole pod", "set them on the trainer's container"),
    "request-without-limit": ("GPUs in `requests` alone", "set `limits`"),
    "quantity": ("an amount that is no quantity, as `16 GB`", "write `16Gi` or `16G`"),
    "image-missing": ("an image that cannot be pulled", "correct the name, or add the pull secret"),
    "command-missing": ("a command that the image has not", "correct `command`"),
    "command-fails": ("a script that fails at its start", "read the error in `status.lastFailure`"),
    "not-torchrun": ("another launcher than `torchrun`", "start the script with `torchrun`"),
    "own-rendezvous": ("a rendezvous of one's own", "remove the variable, or set `rendezvous`"),
    "restart-policy": ("`restartPolicy: OnFailure`", "leave it out: the operator replaces pods"),
    "trainer-restarts": ("`restartPolicy: Always` of the trainer's container", "leave it out"),
    "restart-rules": ("`restartPolicyRules` of the trainer's container", "set `failurePolicy.rules`"),
    "pod-deadline": ("`activeDeadlineSeconds` in the template", "set `runPolicy.activeDeadlineSeconds`"),
    "liveness": ("a liveness probe that fails", "mend the probe, or remove it"),
    "post-start": ("a `postStart` hook that fails", "mend the hook, or remove it"),
    "run-as-non-root": ("`runAsNonRoot` with an image that runs as root", "set `runAsUser`"),
    "mount-without-volume": ("a mount without its volume", "add the volume"),
    "sidecar-first": ("a sidecar in front of the trainer", "name the trainer in the annotation"),
    "sidecar-image": ("a sidecar whose image cannot be pulled", "correct its image"),
    "init-fails": ("an init container that fails", "read its log"),
    "init-hangs": ("an init container that does not end", "read its log"),
    "trainer-annotation": ("an annotation that names no container", "correct the name"),
    "more-than-most": ("`replicas` above `maxReplicas`", "raise the one, or lower the other"),
    "template-missing": ("a `templateRef` that is not there", "create the template"),
    "quota-of-pods": ("a quota that is used up", "raise it, or wait: the job tries again"),
    "quota-of-policies": ("a quota of NetworkPolicies", "raise it, or set `spec.network.policy: false`"),
    "quota-needs-limits": ("a quota that asks for limits", "set the limits of each container"),
    "limits-too-low": ("a LimitRange with a lower maximum", "ask for less, or raise it"),
    "restricted": ("a namespace with restricted Pod Security", "set the `securityContext` that it names"),
    "hook-denies": ("a webhook that denies the pod", "do what its message says"),
    "hook-fails": ("a webhook that does not answer", "mend or remove the webhook"),
    "hook-spoils": ("a webhook that makes the pod invalid", "mend the webhook"),
    "image-entry-point": ("no `command`, and an image that starts no `torchrun`", "write `command: [torchrun, …]`"),
    "requests-only-gpu": ("a device without a limit", "set the limit that it names"),
    "mig": ("parts of GPUs that no node has divided", "divide them on a node, or ask for whole ones"),
    "secret-key-missing": ("a variable from a Secret that is not there", "create it, or set `optional`"),
    "private-image": ("a pull secret that is not there", "create it in the job's namespace"),
    "spread-by-zone": ("`topologySpreadConstraints` by a label that nodes have not", "label the nodes"),
    "one-writer-disk": ("a `ReadWriteOnce` claim for pods on several nodes", "use `ReadWriteMany`, or a volume a pod"),
    "windows": ("a template for Windows", "remove the field: workers run on Linux"),
}


def list_rows() -> Iterator[str]:
    told = {one.name: one.told for one in (*TEXTS, *PARTS, *NEIGHBOURS)}
    for name, (written, remedy) in ADVICE.items():
        yield f"| {written} | … `{told[name][0]}` … | {remedy} |"
