"""The table of docs/operations.md: what people write, what the job then says, and what to do.

What it says is what the judge of the manifests looks for, so that the page cannot promise other words. Whatever may
keep a job from training has a row of its own here, or the row of another one.
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
    "pvc-late": ("a claim whose StorageClass waits for a pod and is not served", "look at the claim's events"),
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
    "log-shipper": (
        "a sidecar among the init containers, before Kubernetes 1.29",
        "make it a container beside the trainer",
    ),
    "huge-pages-alone": ("huge pages, and no amount of memory or CPU", "add the memory or the CPU"),
    "trainer-annotation": ("an annotation that names no container", "correct the name"),
    "more-than-most": ("`replicas` above `maxReplicas`", "raise the one, or lower the other"),
    "template-missing": ("a `templateRef` that is not there", "create the template"),
    "quota-of-pods": ("a quota that is used up", "raise it, or wait: the job tries again"),
    "quota-of-policies": ("a quota of NetworkPolicies", "raise it, or set `spec.network.policy: false`"),
    "quota-needs-limits": ("a quota that asks for limits", "set the limits of each container"),
    "limits-too-low": ("a LimitRange with a lower maximum", "ask for less, or raise it"),
    "restricted": ("a namespace with restricted Pod Security", "set the `securityContext` that it names"),
    "hook-denies": ("a webhook that denies the pod", "do what its message says"),
    "policy-denies": ("a policy of the cluster that denies the pod", "do what its message says"),
    "policy-errs": ("a policy that cannot be evaluated for the pod", "let the policy ask `has(…)` first"),
    "policy-of-jobs": ("a policy for jobs", "do what `kubectl apply` says"),
    "hook-fails": ("a webhook that does not answer", "mend or remove the webhook"),
    "hook-spoils": ("a webhook that makes the pod invalid", "mend the webhook"),
    "image-entry-point": ("no `command`, and an image that starts no `torchrun`", "write `command: [torchrun, …]`"),
    "requests-only-gpu": ("a device without a limit", "set the limit that it names"),
    "mig": ("parts of GPUs that no node has divided", "divide them on a node, or ask for whole ones"),
    "secret-key-missing": ("a variable from a Secret that is not there", "create it, or set `optional`"),
    "env-no-text": ("a variable from a Secret whose value is no text", "encode it with base64, or mount the Secret"),
    "private-image": ("a pull secret that is not there", "create it in the job's namespace"),
    "spread-by-zone": ("`topologySpreadConstraints` by a label that nodes have not", "label the nodes"),
    "one-writer-disk": ("a `ReadWriteOnce` claim for pods on several nodes", "use `ReadWriteMany`, or a volume a pod"),
    "resource-claim-missing": ("a ResourceClaim that is not there", "create it, or correct the name"),
    "claim-undeclared": ("a container's claim that its pod does not list", "add it to the pod's `resourceClaims`"),
    "claim-used": ("devices of a claim that are all in use, or that no node has", "free some, or claim fewer"),
    "claim-of-no-class": ("a claim of a device class that is not there", "create the DeviceClass"),
    "runtime-class-heavy": ("a RuntimeClass whose overhead fits on no node", "use another class, or larger nodes"),
    "runtime-class-elsewhere": ("a RuntimeClass of nodes that are not there", "label such nodes, or use another class"),
    "overhead-differs": ("`overhead` in the template", "leave it out: the RuntimeClass sets it"),
    "large-scratch": ("an `image` volume, and an API server that does not know it", "use a claim, or a newer cluster"),
    "sidecar-restarts-all": ("a sidecar that restarts all containers", "remove the action: the trainer restarts, too"),
    "native-sidecar-fails": ("a sidecar that fails", "read its log"),
    "evicted": ("more data than a `sizeLimit` or the node's disk allows", "raise the limit, or write to a volume"),
    "file-key-missing": ("a variable from a file that no init container has written", "write it, or set `optional`"),
    "scheduling-group": ("a `schedulingGroup` that is not there", "leave it out, or create the PodGroup"),
    "ephemeral-volume": ("a volume template that nothing provisions", "check its storage class"),
    "ratio": ("limits above the LimitRange's ratio to requests", "ask for more, or limit less"),
    "checkpoints-on-a-volume": ("`checkpoints.path` on a volume of one's own", "remove `checkpoints`, or move one"),
    "claims-at-most": ("a volume template that asks for more than a LimitRange allows", "ask for less, or raise it"),
    "disk-elsewhere": ("a claim whose volume no node can use", "add nodes in its zone, or copy the data"),
    "nfs": ("an NFS server that does not answer", "check its name, and the network of the node"),
    "field-of-devices": ("a variable of a device's limit", "write the number"),
    "node-affinity": ("an affinity that no node, or no other pod, fits", "label a node, or correct it"),
    "suspended": ("`runPolicy.suspend: true`", "set it to false"),
    "c10d": ("a rendezvous of torch's own that does not fit the job", "do what the message says"),
    "same-path-twice": ("a field that the API server refuses", "correct the field that it names"),
    "number-in-environment": ("a number or `true` without quotes, where a text belongs", "quote it"),
    "unset-limit": ("an amount, a label or an item that a chart has left empty", "set the value, or leave it out"),
    "command-as-text": ("`command` as one text", "write a list: `[torchrun, train.py]`"),
    "hook-is-slow": ("a webhook that answers too late", "mend it; the job tries again"),
    "baseline": ("a namespace with baseline Pod Security", "leave out what it names"),
    "queue-missing": ("a queue of Kueue that is not there", "create the LocalQueue, or correct the label"),
    "queue-too-small": ("more than the queue may ever admit", "lower `minReplicas`, or use another queue"),
    "queue-class-missing": ("a priority class of Kueue that is not there", "create it, or correct the label"),
    "jobset": ("a spec of another operator, or none, without `template`", "convert it, or write a pod template"),
    "variables-as-a-map": ("a map of variables", "write a list: `- {name: …, value: …}`"),
    "line-in-a-list": ("a whole line as the first word of `command`", "write a list of words, or `[sh, -c, …]`"),
    "windows": ("a template for Windows", "remove the field: workers run on Linux"),
}

# What is told and mended like another one.
LIKE: Final = {
    "secret-volume-missing": ("projected-missing", "trust-bundle", "pod-certificate"),
    "secret-key-missing": ("env-key-missing",),
    "env-from-missing": ("secret-missing",),
    "service-account-missing": ("service-account-before", "account-missing"),
    "priority-class-missing": ("priority",),
    "runtime-class-missing": ("nvidia-runtime",),
    "claim-used": ("claim-here", "claim-of-each-pod"),
    "overhead-differs": ("overhead-alone",),
    "sidecar-restarts-all": ("init-restarts-all",),
    "restart-rules": ("restart-all",),
    "native-sidecar-fails": ("sidecar-fails", "sidecar-always", "sidecar-restart-rules", "native-sidecar-command"),
    "nfs": ("git-repo",),
    "node-selector": ("gpu-nodes", "tpu", "eks-pool", "aks-pool", "gke-class", "karpenter"),
    "node-affinity": ("gpu-affinity", "pod-affinity", "node-by-its-name", "newer-gpus", "five-apart"),
    "spread-by-zone": ("spread",),
    "too-many-gpus": ("unknown-resource", "too-much-disk", "pod-resources-too-large", "host-port", "disk", "amd",
                      "gaudi", "rdma", "intel", "efa", "several-networks", "huge-pages",
                      "init-with-many-gpus"),
    "log-shipper": ("tcpxo", "init-and-sidecar", "native-sidecar"),
    "hostpath-missing": ("docker-socket",),
    "node-refuses": ("tolerates-all",),
    "csi-driver-missing": ("bucket",),
    "pvc-missing": ("parallel-files",),
    "pvc-unbound": ("disk-missing",),
    "quantity": ("amount-in-words", "small-letters"),
    "jobset": ("trainjob", "volcano-tasks", "rayjob", "containers-in-template"),
    "command-as-text": ("args-as-text",),
    "unset-limit": ("unset-label", "unset-word"),
    "scheduler-missing": ("volcano", "yunikorn"),
    "claim-template-missing": ("claim-of-a-template", "claim-of-one-request"),
    "ephemeral-volume": ("scratch-claim",),
    "image-missing": ("unresolved-image", "image-name", "image-never", "image-none"),
    "sidecar-image": ("init-image", "native-sidecar-image"),
    "not-torchrun": ("command-ends", "no-command", "plain-python", "accelerate", "mpirun", "deepspeed"),
    "own-rendezvous": ("own-hub",),
    "liveness": ("startup",),
    "init-fails": ("download-fails",),
    "run-as-non-root": ("non-root-without-user",),
    "quota-of-pods": ("quota-of-one-pod", "quota-of-jobs", "quota-of-gpus", "quota-of-services", "quota-of-claims"),
    "limits-too-low": ("limits-of-pods", "at-least"),
    "number-in-environment": ("number-in-args", "flag-as-label", "flag-as-annotation", "version-as-image"),
    "same-path-twice": (
        "requests-above-limits", "sysctl", "dns", "token-path", "same-volume-twice", "volume-of-two-kinds",
        "size-limit", "same-container-twice", "ephemeral", "hostname-override", "hostname-as-fqdn", "resize-restarts",
        "stop-signal", "toleration-less", "pre-stop-sleep", "preemption-never", "pull-policy", "field-wrong",
        "raw-block", "proc-mount", "grpc-probe", "mount-propagation", "seccomp", "priority-number", "port-name",
        "toleration-wrong", "variable-without-value", "bad-label", "quoted-replicas",
        "no-name", "name-in-capitals", "rules-of-a-job", "short-device", "half-a-gpu", "secrets-as-names",
        "source-as-a-name", "exists-in-small-letters", "duration-in-words", "quoted-bounds",
        "less-than-its-container", "own-users-and-host-network", "equals-in-a-name", "port-names-twice",
        "grace-below-nothing", "affinity-in-small-letters", "seconds-of-no-eviction", "no-replicas", "none-at-least",
        "quoted-suspend", "processes-in-words", "list-of-templates", "path-up", "two-amounts-of-gpus",
    ),
}  # fmt: skip

# For these, the API server refuses a pod, and lists all of them.
FIELDS: Final = frozenset({"same-path-twice", *LIKE["same-path-twice"]})


def list_untold() -> list[str]:
    """What may keep a job from training, and has no row."""
    known = {*ADVICE, *(one for others in LIKE.values() for one in others)}
    return [one.name for one in (*TEXTS, *PARTS, *NEIGHBOURS) if one.told and one.name not in known]


def render() -> str:
    head = ("| what is written | what the condition says | what to do |", "|---|---|---|")
    return "\n".join([*head, *list_rows()])


def list_rows() -> Iterator[str]:
    told = {one.name: one.told for one in (*TEXTS, *PARTS, *NEIGHBOURS)}
    for name, (written, remedy) in ADVICE.items():
        yield f"| {written} | … `{told[name][0]}` … | {remedy} |"
