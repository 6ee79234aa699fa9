"""Jobs as people write them, valid and nearly valid, each with its neighbours: a pure function of a seed.

Most of a job comes from a catalogue of what people write, where it is known which words have to be told if it keeps the
job from training. Some fields are drawn from the schema of pods that the API server serves, and from that of jobs.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.light_nodes import HERE, REFUSES
from chaos.specs import Maker as SpecMaker
from elasticjob_devcluster import NodeSpec
from elasticjob_operator.api import names

Object = dict[str, Any]
HOOK: Final = "chaos-hook"  # label of a namespace: which webhook sees its pods
REFUSING: Final = {"chaos/node": "refuses"}
DISK: Final = {"ephemeral-storage": "1000Gi"}
NODES: Final = (
    *(NodeSpec(f"light-{i}", gpus=8, cpu=4000, memory="4000Gi", pods=4000, extended=DISK) for i in range(4)),
    *(
        NodeSpec(f"refuses-{i}", cpu=4000, memory="4000Gi", pods=4000, labels={**REFUSING, REFUSES: reason},
                 taints=({"key": "refuses", "value": "all", "effect": "NoSchedule"},))
        for i, reason in enumerate(("UnexpectedAdmissionError", "OutOfcpu", "TopologyAffinityError"))
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """Something that people write. `told`: if the job does not train because of it, one of these words is told."""

    name: str
    where: str  # container, pod, template, spec, side (a second container), …: see `apply_part`
    value: Object
    told: tuple[str, ...] = ()
    node: bool = False  # it makes the pods fit nowhere: told by the scheduler


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What others have put into the namespace. `told` as in `Part`."""

    name: str
    objects: tuple[tuple[str, Object], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    told: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Made:
    """One job with its neighbours."""

    number: int
    namespace: str
    labels: Mapping[str, str]
    neighbours: tuple[tuple[str, Object], ...]
    body: Object
    parts: tuple[str, ...]
    told: tuple[str, ...]  # one of these words, unless the job trains
    is_sure: bool  # no other word will do: there is one part only, and nothing is drawn
    has_to_train: bool = False
    warned: tuple[str, ...] = ()  # one of these words, although it trains
    causes: tuple[object, ...] = ()  # what parts have put there of which it is not known what is told

    @property
    def size(self) -> int | None:
        """How many pods it asks for, if it says so and nothing else may change it."""
        spec = self.body["spec"]
        size = spec.get("replicas")
        return size if type(size) is int and not spec.get("scaling") else None

    @property
    def spares(self) -> int:
        policy = self.body["spec"].get("elasticPolicy")
        spares = policy.get("spares") if isinstance(policy, dict) else 0
        return spares if type(spares) is int else 0

    @property
    def is_ours(self) -> bool:
        spec = self.body["spec"]
        policy = spec.get("runPolicy")
        places = (spec, policy) if isinstance(policy, dict) else (spec,)
        return all(place.get("managedBy") in (None, names.MANAGED_BY) for place in places)

    @property
    def is_deleted(self) -> bool:
        """Whether it asks to be deleted soon after its end."""
        policy = self.body["spec"].get("runPolicy")
        return isinstance(policy, dict) and "ttlSecondsAfterFinished" in policy


def probe(**more: Any) -> Object:
    return {"exec": {"command": ["false"]}, "periodSeconds": 5, "failureThreshold": 2, **more}


def volume(name: str, **source: Any) -> Object:
    return {"volumes": [{"name": name, **source}]}


def side(name: str, *command: str, **more: Any) -> Object:
    return {"name": name, "image": f"{HERE}side:1", "command": list(command), **more}


def queue(name: str, **labels: str) -> Object:
    """Of Kueue. Each pod asks for two CPUs there."""
    return {"job": {"labels": {QUEUE: name, **labels}}, "container": {"resources": {"requests": {"cpu": "2"}}}}


QUEUE: Final = "kueue.x-k8s.io/queue-name"
FAILED: Final = {"operator": "NotIn", "values": [0]}  # exit codes
PARTS: Final = (
    # Objects that are not there.
    Part("configmap-volume-missing", "pod", volume("settings", configMap={"name": "missing-map"}), ("missing-map",)),
    Part("configmap-key-missing", "pod",
         volume("settings", configMap={"name": "here-map", "items": [{"key": "lost-key", "path": "a"}]}),
         ("lost-key",)),
    Part("secret-volume-missing", "pod", volume("keys", secret={"secretName": "missing-key"}), ("missing-key",)),
    Part("projected-missing", "pod",
         volume("all", projected={"sources": [{"secret": {"name": "missing-key"}}]}), ("missing-key",)),
    Part("optional-missing", "pod", volume("maybe", configMap={"name": "missing-map", "optional": True})),
    Part("pvc-missing", "pod", volume("data", persistentVolumeClaim={"claimName": "missing-claim"}), ("missing-claim",),
         node=True),
    Part("pvc-unbound", "pod", volume("data", persistentVolumeClaim={"claimName": "here-claim"}),
         ("here-claim",), node=True),
    Part("pvc-late", "pod", volume("data", persistentVolumeClaim={"claimName": "late-claim"}),
         ("late-claim",), node=True),
    Part("csi-driver-missing", "pod", volume("cache", csi={"driver": "csi.example.com"}), ("csi.example.com",)),
    Part("hostpath-missing", "pod", volume("raid", hostPath={"path": "/no/such/raid", "type": "Directory"}),
         ("/no/such/raid",)),
    Part("env-from-missing", "container", {"envFrom": [{"secretRef": {"name": "missing-env"}}]}, ("missing-env",)),
    Part("env-from-here", "container", {"envFrom": [{"configMapRef": {"name": "here-map"}}]}),
    Part("env-key-missing", "container",
         {"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "here-key", "key": "lost-key"}}}]},
         ("lost-key",)),
    Part("env-no-text", "container", {"envFrom": [{"secretRef": {"name": "here-bytes"}}]}, ("Secret here-bytes",)),
    Part("service-account-missing", "pod", {"serviceAccountName": "missing-account"}, ("missing-account",)),
    Part("priority-class-missing", "pod", {"priorityClassName": "missing-class"}, ("missing-class",)),
    Part("priority-class-here", "pod", {"priorityClassName": "here-class"}),
    Part("runtime-class-missing", "pod", {"runtimeClassName": "missing-runtime"}, ("missing-runtime",)),
    Part("pull-secret-missing", "pod", {"imagePullSecrets": [{"name": "missing-pull"}]}),
    Part("scheduler-missing", "pod", {"schedulerName": "missing-scheduler"}, ("missing-scheduler", "PodGroup")),
    Part("scheduling-gate", "pod", {"schedulingGates": [{"name": "example.com/gate"}]}, ("example.com/gate",)),
    Part("resource-claim-missing", "pod",
         {"resourceClaims": [{"name": "gpu", "resourceClaimName": "missing-device"}]}, ("missing-device",)),
    # Nodes that are not there, or do not want the pod.
    Part("node-selector", "pod", {"nodeSelector": {"gpu": "h100"}}, ("nodeSelector: gpu=h100", "gpu=h100"), node=True),
    Part("node-name-missing", "pod", {"nodeName": "missing-node"}, ("missing-node",)),
    Part("node-name", "pod", {"nodeName": "light-1"}),
    Part("node-refuses", "pod",
         {"nodeSelector": REFUSING, "tolerations": [{"key": "refuses", "operator": "Exists"}]},
         ("UnexpectedAdmissionError", "OutOfcpu", "TopologyAffinityError")),
    Part("too-many-gpus", "container", {"resources": {"limits": {"nvidia.com/gpu": "64"}}},
         ("trainer asks for nvidia.com/gpu 64",), node=True),
    Part("too-much-disk", "container", {"resources": {"requests": {"ephemeral-storage": "1Ei"}}},
         ("trainer asks for ephemeral-storage 1Ei",), node=True),
    Part("unknown-resource", "container", {"resources": {"limits": {"rdma/hca": "1"}}},
         ("trainer asks for rdma/hca 1",), node=True),
    Part("request-without-limit", "container", {"resources": {"requests": {"nvidia.com/gpu": "1"}}},
         ("resources.limits",)),
    Part("requests-above-limits", "container",
         {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}, ("resources.requests",)),
    Part("quantity", "container", {"resources": {"limits": {"memory": "16 GB"}}}, ("resources.limits[memory]",)),
    Part("host-network", "pod", {"hostNetwork": True}),
    Part("host-port", "container", {"ports": [{"containerPort": 29500, "hostPort": 29500}]}, ("hostPort 29500",),
         node=True),
    Part("spread", "pod",
         {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                                         "labelSelector": {"matchLabels": {"a": "b"}}}]}, ("topology spread",),
         node=True),
    Part("tolerates-all", "pod", {"tolerations": [{"operator": "Exists"}]},
         ("UnexpectedAdmissionError", "OutOfcpu", "TopologyAffinityError")),
    Part("huge-pages", "container", {"resources": {"limits": {"hugepages-2Mi": "512Mi", "memory": "1Gi"}}},
         ("trainer asks for hugepages-2Mi 512Mi",), node=True),
    Part("downward-volume", "pod+",
         {"volumes": [{"name": "about", "downwardAPI": {"items": [
             {"path": "cpus", "resourceFieldRef": {"containerName": "trainer", "resource": "limits.cpu"}}]}}],
          "volumeMounts": [{"name": "about", "mountPath": "/etc/podinfo"}]}),
    Part("env-prefix", "container", {"envFrom": [{"prefix": "CFG_", "configMapRef": {"name": "here-map"}}]}),
    Part("sub-path", "pod+",
         {"volumes": [{"name": "files", "emptyDir": {}}],
          "volumeMounts": [{"name": "files", "mountPath": "/data", "subPathExpr": "$(RANK)/run"}]}),
    Part("infiniband", "pod+",
         {"volumes": [{"name": "devinf", "hostPath": {"path": "/dev/infiniband"}}],
          "volumeMounts": [{"name": "devinf", "mountPath": "/dev/infiniband"}]}),
    Part("toleration", "pod", {"tolerations": [{"operator": "Exists", "effect": "NoExecute"}]}),
    Part("windows", "pod", {"os": {"name": "windows"}}, ("spec.os.name", "nodeSelector")),
    # Images and commands.
    Part("image-missing", "container", {"image": "registry.example.com/train:missing"}, ("train:missing",)),
    Part("image-name", "container", {"image": f"{HERE}train image:"}, ("train image",)),
    Part("image-never", "container", {"image": "train:local", "imagePullPolicy": "Never"}, ("train:local",)),
    Part("image-none", "container", {"image": ""}, ("].image: Required",)),
    Part("command-missing", "container", {"command": ["python3.99", "train.py"]}, ("python3.99",)),
    Part("evicted", "container", {"command": ["fallocate", "-l", "2Ti", "/scratch/data"]}, ("ephemeral-storage",)),
    Part("command-fails", "container", {"command": ["false"]}, ("exit code 1",)),
    Part("command-ends", "container", {"command": ["true"]}, ("with torchrun",)),
    Part("not-torchrun", "container", {"command": ["sleep", "1000000"]}, ("with torchrun",)),
    Part("no-command", "container", {"command": []}, ("with torchrun",)),
    Part("own-rendezvous", "container", {"env": [{"name": "PET_RDZV_BACKEND", "value": "c10d"}]},
         ("PET_RDZV_BACKEND",)),
    Part("own-hub", "container", {"env": [{"name": "ELASTICJOB_HUB_URL", "value": "ws://127.0.0.1:1"}]},
         ("ELASTICJOB_HUB_URL",)),
    # Knobs of a pod.
    Part("restart-policy", "pod", {"restartPolicy": "OnFailure"}, ("restartPolicy",)),
    Part("pod-deadline", "pod", {"activeDeadlineSeconds": 8}, ("activeDeadlineSeconds",)),
    Part("liveness", "container", {"livenessProbe": probe()}, ("livenessProbe",)),
    Part("startup", "container", {"startupProbe": probe()}, ("startupProbe",)),
    Part("readiness", "container", {"readinessProbe": probe()}),
    Part("post-start", "container", {"lifecycle": {"postStart": {"exec": {"command": ["false"]}}}}, ("postStart",)),
    Part("grace", "pod", {"terminationGracePeriodSeconds": 1}),
    Part("hostname", "pod", {"hostname": "trainer", "subdomain": "training"}),
    Part("run-as-non-root", "pod", {"securityContext": {"runAsNonRoot": True}}, ("runAsNonRoot",)),
    Part("run-as-user", "pod", {"securityContext": {"runAsUser": 1000, "fsGroup": 1000}}),
    Part("privileged", "container", {"securityContext": {"privileged": True, "capabilities": {"add": ["IPC_LOCK"]}}}),
    Part("sysctl", "pod", {"securityContext": {"sysctls": [{"name": "no such", "value": "1"}]}}, ("sysctls",)),
    Part("share-processes", "pod", {"shareProcessNamespace": True, "hostIPC": True}),
    Part("dns", "pod", {"dnsPolicy": "None"}, ("dnsConfig",)),
    Part("host-aliases", "pod", {"hostAliases": [{"ip": "127.0.0.1", "hostnames": ["licence"]}]}),
    Part("enable-service-links", "pod", {"enableServiceLinks": True, "automountServiceAccountToken": True}),
    # Volumes and mounts that look like the operator's.
    Part("shm", "pod+", {"volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory"}}],
                         "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}]}),
    Part("shm-name", "pod+", {"volumes": [{"name": "elasticjob-shm", "emptyDir": {}}],
                              "volumeMounts": [{"name": "elasticjob-shm", "mountPath": "/scratch"}]}),
    Part("token-name", "pod", volume("elasticjob-token", emptyDir={})),
    Part("token-path", "pod+", {"volumes": [{"name": "mine", "emptyDir": {}}],
                                "volumeMounts": [{"name": "mine", "mountPath": "/var/run/secrets/elasticjob.dev"}]},
         ("/var/run/secrets/elasticjob.dev",)),
    Part("mount-without-volume", "container", {"volumeMounts": [{"name": "lost-volume", "mountPath": "/x"}]},
         ("lost-volume", "volumeMounts")),
    Part("same-volume-twice", "pod",
         {"volumes": [{"name": "twice", "emptyDir": {}}, {"name": "twice", "emptyDir": {}}]},
         ("volumes[1].name", "twice")),
    Part("volume-of-two-kinds", "pod",
         volume("both", emptyDir={}, hostPath={"path": "/tmp"}), ("volumes",)),
    Part("size-limit", "pod", volume("scratch", emptyDir={"sizeLimit": "lots"}), ("sizeLimit", "quantit")),
    # Further containers.
    Part("sidecar", "side", side("logs", "sleep", "1000000")),
    Part("sidecar-first", "first", side("istio-proxy", "sleep", "1000000"), ("trainer-container", "istio-proxy")),
    Part("sidecar-fails", "side", side("logs", "false"), ("logs",)),
    Part("sidecar-image", "side", side("logs", "sleep", image="registry.example.com/logs:missing"), ("logs:missing",)),
    Part("same-container-twice", "side", side("trainer", "sleep"), ("containers[1].name", "trainer")),
    Part("init", "init", side("download", "true")),
    Part("init-fails", "init", side("download", "false"), ("download",)),
    Part("init-hangs", "init", side("download", "sleep", "1000000"), ("init container",)),
    Part("init-image", "init", side("download", "true", image="registry.example.com/get:missing"), ("get:missing",)),
    Part("native-sidecar", "init", side("proxy", "sleep", "1000000", restartPolicy="Always"),
         ("initContainers: proxy",)),
    Part("runtime-name", "init", side("elasticjob-runtime", "true")),
    # What newer versions of Kubernetes know; older ones leave it out.
    Part("pod-resources", "pod", {"resources": {"limits": {"cpu": "4", "memory": "8Gi"}}}),
    Part("pod-resources-too-large", "pod", {"resources": {"requests": {"memory": "900Ti"}}},
         ("spec.resources: memory 900Ti",), node=True),
    Part("pod-resources-gpu", "pod", {"resources": {"limits": {"nvidia.com/gpu": "1"}}}, ("spec.resources",)),
    Part("restart-rules", "container",
         {"restartPolicy": "Never",
          "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]},
         ("restartPolicyRules",)),
    Part("trainer-restarts", "container", {"restartPolicy": "Always"}, ("restartPolicy",)),
    Part("ephemeral", "pod", {"ephemeralContainers": [{"name": "debug", "image": f"{HERE}busybox:1"}]},
         ("ephemeralContainers",)),
    Part("native-sidecar-image", "init",
         side("proxy", "sleep", image="registry.example.com/proxy:missing", restartPolicy="Always"),
         ("proxy:missing",)),
    Part("native-sidecar-command", "init", side("proxy", "no-such-proxy", restartPolicy="Always"),
         ("container proxy", "init container 'proxy'")),
    Part("native-sidecar-fails", "init", side("proxy", "false", restartPolicy="Always"), ("proxy", "init container")),
    Part("claim-template-missing", "pod",
         {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "missing-devices"}]}, ("missing-devices",)),
    Part("claim-undeclared", "container", {"resources": {"claims": [{"name": "lost-claim"}]}}, ("lost-claim",)),
    Part("host-users", "pod", {"hostUsers": False}),
    Part("image-volume", "pod", volume("weights", image={"reference": f"{HERE}weights:1"})),
    Part("hostname-override", "pod", {"hostnameOverride": "trainer.example.com"}, ("hostnameOverride",)),
    Part("hostname-as-fqdn", "pod", {"setHostnameAsFQDN": True}, ("setHostnameAsFQDN", "hostname", "FQDN")),
    Part("supplemental-groups", "pod", {"securityContext": {"supplementalGroupsPolicy": "Strict"}}),
    Part("app-armor", "container", {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
    Part("resize-policy", "container",
         {"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
          "resources": {"requests": {"cpu": "1"}}}),
    Part("resize-restarts", "container",
         {"resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]}, ("resizePolicy",)),
    Part("stop-signal", "container", {"lifecycle": {"stopSignal": "SIGUSR1"}}, ("stopSignal", "spec.os")),
    Part("restart-all", "container",
         {"restartPolicy": "Never", "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": FAILED}]},
         ("restartPolicyRules",)),
    Part("sidecar-restarts-all", "side",
         side("logs", "sleep", "1000000", restartPolicy="Never",
              restartPolicyRules=[{"action": "RestartAllContainers", "exitCodes": FAILED}]), ("RestartAllContainers",)),
    Part("init-restarts-all", "init",
         side("download", "true", restartPolicy="Never",
              restartPolicyRules=[{"action": "RestartAllContainers", "exitCodes": FAILED}]), ("RestartAllContainers",)),
    Part("sidecar-restart-rules", "side",
         side("logs", "false", restartPolicy="Never", restartPolicyRules=[{"action": "Restart", "exitCodes": FAILED}]),
         ("logs",)),
    Part("sidecar-always", "side", side("logs", "false", restartPolicy="Always"), ("logs",)),
    Part("claim-here", "pod", {"resourceClaims": [{"name": "gpu", "resourceClaimName": "here-device"}]}, ("claim",)),
    Part("claim-used", "pod+container",
         {"pod": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "here-device"}]},
          "container": {"resources": {"claims": [{"name": "gpu"}]}}}, ("claim",)),
    Part("claim-of-each-pod", "pod",
         {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "here-devices"}]}, ("claim",)),
    Part("claim-of-no-class", "pod",
         {"resourceClaims": [{"name": "gpu", "resourceClaimName": "here-nothing"}]}, ("claim", "missing-devices"),
         node=True),
    Part("file-key-missing", "pod+container",
         {"pod": volume("settings", emptyDir={}),
          "container": {"env": [{"name": "K", "valueFrom": {"fileKeyRef": {"volumeName": "settings", "path": "lost.env",
                                                                           "key": "K"}}}]}},
         ("lost.env", "] is K")),
    Part("scheduling-group", "pod", {"schedulingGroup": {"podGroupName": "missing-group"}}, ("missing-group",)),
    Part("toleration-less", "pod", {"tolerations": [{"key": "sla", "operator": "Lt", "value": "950"}]},
         ("tolerations",)),
    Part("pre-stop-sleep", "container", {"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}}, ("preStop",)),
    Part("trust-bundle", "pod",
         volume("roots", projected={"sources": [{"clusterTrustBundle": {"name": "missing-roots", "path": "ca.pem"}}]}),
         ("missing-roots", "sources")),
    Part("pod-certificate", "pod",
         volume("identity", projected={"sources": [{"podCertificate": {"signerName": "example.com/signer",
                                                                       "keyType": "ED25519",
                                                                       "credentialBundlePath": "pair.pem"}}]}),
         ("example.com/signer", "sources")),
    # Classes of runtimes, which add to what a pod requests and choose its nodes.
    Part("runtime-class-overhead", "pod", {"runtimeClassName": "here-runtime"}),
    Part("runtime-class-heavy", "pod", {"runtimeClassName": "heavy-runtime"}, ("runtimeClassName: heavy-runtime",),
         node=True),
    Part("runtime-class-elsewhere", "pod", {"runtimeClassName": "elsewhere-runtime"},
         ("runtimeClassName: elsewhere-runtime",), node=True),
    Part("overhead-alone", "pod", {"overhead": {"cpu": "250m"}}, ("Pod Overhead set", "spec.overhead")),
    Part("overhead-differs", "pod", {"runtimeClassName": "here-runtime", "overhead": {"cpu": "1"}},
         ("Pod's Overhead", "spec.overhead")),
    # Less usual fields that every version knows.
    Part("preemption-never", "pod", {"preemptionPolicy": "Never"}, ("preemptionPolicy",)),
    Part("service-account-before", "pod", {"serviceAccount": "missing-account"}, ("missing-account",)),
    Part("node-affinity", "pod",
         {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
             {"matchExpressions": [{"key": "accelerator", "operator": "In", "values": ["gb200"]}]}]}}}},
         ("affinity.nodeAffinity",), node=True),
    Part("dns-own", "pod", {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.10"], "searches": ["train"]}}),
    Part("pull-policy", "container", {"imagePullPolicy": "Sometimes"}, ("imagePullPolicy",)),
    Part("working-dir", "container", {"workingDir": "/workspace", "terminationMessagePolicy": "FallbackToLogsOnError"}),
    Part("args-alone", "container", {"command": [], "args": ["torchrun", "train.py"]}),
    Part("field-of-another-operator", "container",
         {"env": [{"name": "NODE_RANK", "valueFrom": {
             "fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}}]}),
    Part("field-wrong", "container",
         {"env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeNames"}}}]}, ("fieldPath",)),
    Part("field-of-devices", "container",
         {"env": [{"name": "GPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.nvidia.com/gpu"}}}]},
         ("resource",)),
    Part("raw-block", "container", {"volumeDevices": [{"name": "block", "devicePath": "/dev/xvda"}]},
         ("volumeDevices", "block")),
    Part("env-from-prefix", "container", {"envFrom": [{"prefix": "TRAIN_", "configMapRef": {"name": "here-map"}}]}),
    Part("proc-mount", "container", {"securityContext": {"procMount": "Unmasked"}}, ("procMount",)),
    Part("read-only-root", "container", {"securityContext": {"readOnlyRootFilesystem": True}}),
    Part("grpc-probe", "container", {"readinessProbe": {"grpc": {"port": 29500}}}, ("readinessProbe",)),
    Part("same-path-twice", "pod+",
         {"volumes": [{"name": "one", "emptyDir": {}}, {"name": "two", "emptyDir": {}}],
          "volumeMounts": [{"name": "one", "mountPath": "/data"}, {"name": "two", "mountPath": "/data"}]},
         ("mountPath",)),
    Part("mount-propagation", "pod+",
         {"volumes": [{"name": "disks", "hostPath": {"path": "/tmp"}}],
          "volumeMounts": [{"name": "disks", "mountPath": "/disks", "mountPropagation": "Bidirectional"}]},
         ("mountPropagation",)),
    Part("nfs", "pod", volume("home", nfs={"server": "nfs.example.com", "path": "/home"}), ("nfs.example.com",)),
    Part("git-repo", "pod", volume("source", gitRepo={"repository": "https://git.example.com/train"}),
         ("git.example.com", "gitRepo")),
    Part("ephemeral-volume", "pod",
         volume("scratch", ephemeral={"volumeClaimTemplate": {"spec": {
             "accessModes": ["ReadWriteOnce"], "storageClassName": "missing",
             "resources": {"requests": {"storage": "1Gi"}}}}}), ("StorageClass", "volumes"), node=True),
    Part("downward-volume", "pod",
         volume("podinfo", downwardAPI={"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]})),
    Part("host-pid", "pod", {"hostPID": True}),
    Part("readiness-gate", "pod", {"readinessGates": [{"conditionType": "example.com/balanced"}]}),
    Part("pre-stop", "container", {"lifecycle": {"preStop": {"exec": {"command": ["sleep", "15"]}}}}),
    Part("sub-path-expr", "pod+", {"volumes": [{"name": "runs", "emptyDir": {}}],
                                   "volumeMounts": [{"name": "runs", "mountPath": "/runs",
                                                     "subPathExpr": "$(POD_NAME)"}]}),
    Part("projected-token", "pod",
         volume("aws", projected={"sources": [{"serviceAccountToken": {"path": "t", "audience": "sts.example.com"}}]})),
    Part("seccomp", "pod", {"securityContext": {"seccompProfile": {"type": "Localhost"}}}, ("seccompProfile",)),
    Part("priority-number", "pod", {"priority": 5}, ("value of priority", "spec.priority")),
    Part("port-name", "container", {"ports": [{"containerPort": 29500, "name": "rendezvous-of-torch"}]}, ("ports",)),
    Part("toleration-wrong", "pod", {"tolerations": [{"key": "gpu", "operator": "Exists", "value": "true"}]},
         ("tolerations",)),
    Part("variable-without-value", "container", {"env": [{"name": "EMPTY"}, {"name": "", "value": "x"}]}, ("env",)),
    Part("termination-message", "container", {"terminationMessagePath": "/tmp/why", "stdin": True, "tty": True}),
    Part("pod-affinity", "pod",
         {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
             {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "no-such-app"}}}]}}},
         ("affinity.podAffinity",), node=True),
    Part("spread-match-keys", "pod",
         {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                                         "whenUnsatisfiable": "ScheduleAnyway", "matchLabelKeys": ["app"],
                                         "labelSelector": {"matchLabels": {"a": "b"}}}]}),
    # Queues of Kueue.
    Part("queue-admits", "job+container", queue("here-queue")),
    Part("queue-missing", "job+container", queue("missing-queue"), ("missing-queue",)),
    Part("queue-too-small", "job+container", queue("small-queue"), ("insufficient quota for cpu",)),
    Part("queue-class-missing", "job+container",
         queue("here-queue", **{"kueue.x-k8s.io/priority-class": "missing-class"}), ("missing-class",)),
    # Metadata and the job itself.
    Part("labels", "template", {"metadata": {"labels": {"app": "bert", "team": "nlp"}}}),
    Part("bad-label", "template", {"metadata": {"labels": {"app": "bert large"}}}, ("labels",)),
    Part("our-labels", "template", {"metadata": {"labels": {"elasticjob.dev/job-name": "other"}}}),
    Part("pod-name", "template", {"metadata": {"name": "mine", "namespace": "other", "finalizers": ["x/y"]}}),
    Part("istio", "template", {"metadata": {"annotations": {"sidecar.istio.io/inject": "true"}}}),
    Part("trainer-annotation", "template", {"metadata": {"annotations": {names.ANNOTATION_TRAINER: "nobody"}}},
         ("trainer-container", "nobody")),
    Part("suspended", "spec", {"runPolicy": {"suspend": True}}, ("suspend",)),
    Part("startup-deadline", "spec", {"runPolicy": {"startupDeadlineSeconds": 20}}),
    Part("c10d", "spec", {"rendezvous": {"backend": "C10d"}}, ("rendezvous", "c10d", "C10d")),
    Part("service", "spec", {"network": {"service": True}}),
    Part("checkpoints", "spec", {"checkpoints": {"path": "/checkpoints"}}),
    Part("more-than-most", "spec", {"replicas": 9}, ("replicas", "maxReplicas")),
    Part("template-missing", "spec", {"templateRef": {"name": "missing-template"}}, ("missing-template",
                                                                                    "template")),
)  # fmt: skip


def quota(**hard: str) -> tuple[str, Object]:
    return "/api/v1/namespaces/{}/resourcequotas", {"metadata": {"name": "team-quota"}, "spec": {"hard": hard}}


def limits(**limit: Any) -> tuple[str, Object]:
    body = {"metadata": {"name": "team-limits"}, "spec": {"limits": [{"type": "Container", **limit}]}}
    return "/api/v1/namespaces/{}/limitranges", body


NEIGHBOURS: Final = (
    *(Neighbour("none"),) * 14,
    Neighbour("quota-of-pods", (quota(pods="0"),), told=("team-quota",)),
    Neighbour("quota-of-one-pod", (quota(pods="1"),), told=("team-quota",)),
    Neighbour("quota-needs-limits", (quota(**{"limits.memory": "1Gi"}),), told=("team-quota",)),
    Neighbour("quota-of-jobs", (quota(**{f"count/{names.PLURAL}.{names.GROUP}": "0"}),), told=("team-quota",)),
    Neighbour("limits-default", (limits(default={"cpu": "1", "memory": "1Gi"}),)),
    Neighbour("limits-too-low", (limits(max={"cpu": "1m"}, default={"cpu": "1m"}, defaultRequest={"cpu": "1m"}),),
              told=("maximum cpu",)),
    Neighbour("restricted", labels={"pod-security.kubernetes.io/enforce": "restricted"}, told=("PodSecurity",)),
    Neighbour("quota-of-policies", (quota(**{"count/networkpolicies.networking.k8s.io": "0"}),), told=("team-quota",)),
    Neighbour("quota-of-gpus", (quota(**{"requests.nvidia.com/gpu": "0"}),), told=("team-quota",)),
    Neighbour("quota-of-services", (quota(services="0"),), told=("team-quota",)),
    Neighbour("limits-of-pods", (limits(type="Pod", max={"memory": "1Mi"}),), told=("memory usage per Pod",)),
    Neighbour("baseline", labels={"pod-security.kubernetes.io/enforce": "baseline"}, told=("PodSecurity",)),
    Neighbour("hook-denies", labels={HOOK: "denies"}, told=("denies.hook.example",)),
    Neighbour("hook-fails", labels={HOOK: "fails"}, told=("fails.hook.example",)),
    Neighbour("hook-is-slow", labels={HOOK: "slow"}, told=("slow.hook.example",)),
    Neighbour("hook-is-late", labels={HOOK: "late"}),
    Neighbour("hook-mutates", labels={HOOK: "mutates"}),
    Neighbour("hook-mounts-shm", labels={HOOK: "shm"}),
    Neighbour("hook-spoils", labels={HOOK: "spoils"}, told=("admission webhook",)),
    Neighbour("policy-denies", labels={HOOK: "policy-denies"}, told=("cost-center",)),
    Neighbour("policy-errs", labels={HOOK: "policy-errs"}, told=("policy-errs",)),
    Neighbour("policy-of-jobs", labels={HOOK: "policy-of-jobs"}, told=("checkpoints",)),
)  # fmt: skip


def kueue_object(kind: str, name: str, **spec: Any) -> Object:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}


def cluster_queue(name: str, cpus: int) -> Object:
    flavor = {"name": "default", "resources": [{"name": "cpu", "nominalQuota": f"{cpus}"}]}
    groups = [{"coveredResources": ["cpu"], "flavors": [flavor]}]
    return kueue_object("ClusterQueue", name, namespaceSelector={}, resourceGroups=groups)


# What is in each namespace, to be referred to.
HERE_OBJECTS: Final = (
    ("/api/v1/namespaces/{}/configmaps", {"metadata": {"name": "here-map"}, "data": {"a": "b"}}),
    ("/api/v1/namespaces/{}/secrets", {"metadata": {"name": "here-key"}, "stringData": {"a": "b"}}),
    ("/api/v1/namespaces/{}/secrets", {"metadata": {"name": "here-bytes"}, "data": {"a": "gP8="}}),
    ("/api/v1/namespaces/{}/persistentvolumeclaims",
     {"metadata": {"name": "here-claim"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "missing",
                                                    "resources": {"requests": {"storage": "1Gi"}}}}),
    ("/api/v1/namespaces/{}/persistentvolumeclaims",
     {"metadata": {"name": "late-claim"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "late-class",
                                                   "resources": {"requests": {"storage": "1Gi"}}}}),
)  # fmt: skip
KUEUE: Final = "/apis/kueue.x-k8s.io/v1beta2"
HERE_QUEUES: Final = tuple(
    (f"{KUEUE}/namespaces/{{}}/localqueues", kueue_object("LocalQueue", f"{size}-queue", clusterQueue=f"{size}-quota"))
    for size in ("here", "small")
)
CLAIM: Final = "io.k8s.api.resource.v1.ResourceClaim"  # the schema, where devices can be claimed


def claim(device_class: str) -> Object:
    return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": device_class}}]}}


HERE_CLAIMS: Final = (
    ("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
     {"metadata": {"name": "here-device"}, "spec": claim("here-class")}),
    ("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
     {"metadata": {"name": "here-nothing"}, "spec": claim("missing-devices")}),
    ("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates",
     {"metadata": {"name": "here-devices"}, "spec": {"spec": claim("here-class")}}),
)  # fmt: skip
# What is in the cluster, to be referred to.
CLUSTER_OBJECTS: Final = (
    ("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "here-class"}, "value": 5}),
    ("/apis/storage.k8s.io/v1/storageclasses",
     {"metadata": {"name": "late-class"}, "provisioner": "example.com/gone",
      "volumeBindingMode": "WaitForFirstConsumer"}),
    ("/apis/node.k8s.io/v1/runtimeclasses",
     {"metadata": {"name": "here-runtime"}, "handler": "here",
      "overhead": {"podFixed": {"cpu": "250m", "memory": "64Mi"}}}),
    ("/apis/node.k8s.io/v1/runtimeclasses",
     {"metadata": {"name": "heavy-runtime"}, "handler": "heavy", "overhead": {"podFixed": {"memory": "900Ti"}}}),
    ("/apis/node.k8s.io/v1/runtimeclasses",
     {"metadata": {"name": "elsewhere-runtime"}, "handler": "elsewhere",
      "scheduling": {"nodeSelector": {"sandbox": "gvisor"}}}),
)  # fmt: skip


def policy(name: str, resource: tuple[str, str, str], expression: str, message: str) -> Iterator[tuple[str, Object]]:
    """A ValidatingAdmissionPolicy for the namespaces that have its name, and its binding."""
    root = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    group, version, plural = resource
    rule = {"apiGroups": [group], "apiVersions": [version], "operations": ["CREATE"], "resources": [plural]}
    matches = {"namespaceSelector": {"matchLabels": {HOOK: name}}, "resourceRules": [rule]}
    validations = [{"expression": expression, "message": message}]
    yield f"{root}ies", {"metadata": {"name": name}, "spec": {"matchConstraints": matches, "validations": validations}}
    yield f"{root}ybindings", {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}


POD: Final = ("", "v1", "pods")
JOB: Final = (names.GROUP, names.VERSION, names.PLURAL)
CLUSTER_POLICIES: Final = (
    *policy("policy-denies", POD, "'cost-center' in object.metadata.labels", "every pod needs the label cost-center"),
    *policy("policy-errs", POD, "object.spec.priorityClassName == 'low'", "of low priority only"),
    *policy("policy-of-jobs", JOB, "has(object.spec.checkpoints)", "every job needs spec.checkpoints"),
)
CLUSTER_QUEUES: Final = (
    (f"{KUEUE}/resourceflavors", kueue_object("ResourceFlavor", "default")),
    (f"{KUEUE}/clusterqueues", cluster_queue("here-quota", 10_000)),
    (f"{KUEUE}/clusterqueues", cluster_queue("small-quota", 1)),
)
CLUSTER_DEVICES: Final = (
    ("/apis/resource.k8s.io/v1/deviceclasses", {"metadata": {"name": "here-class"}, "spec": {}}),
    ("/apis/resource.k8s.io/v1/resourceslices",
     {"metadata": {"name": "here-slice"},
      "spec": {"driver": "gpu.example.com", "nodeName": "light-0",
               "pool": {"name": "light-0", "generation": 1, "resourceSliceCount": 1},
               "devices": [{"name": f"gpu-{i}"} for i in range(100)]}}),
)  # fmt: skip
NAMED = {"configmap", "secret", "env", "pvc"}


class Maker:
    """Makes jobs. `definitions`: those of the OpenAPI document that the API server serves."""

    def __init__(self, seed: int, definitions: Mapping[str, Any]) -> None:
        self._dice = random.Random(seed)
        self._definitions = definitions
        self._specs = SpecMaker(seed, junk=0.02)
        self._seed = seed

    def make(self, number: int) -> Made:
        dice = self._dice
        body = self._job(number)
        parts: list[str] = []
        told: list[str] = []
        causes: list[object] = []
        has_drawn = False
        # Each part is there at least once in so many jobs, alone or with others; some are drawn from schemas.
        chosen = [PARTS[number % len(PARTS)]] if dice.random() < 0.7 else []
        chosen += dice.choices(PARTS, k=dice.choice((0, 0, 0, 1, 2)))
        for part in {part.name: part for part in chosen}.values():
            apply_part(body, part)
            parts.append(part.name)
            told += part.told
            causes += [] if part.told else [part.value]
        for _ in range(dice.choice((0, 0, 0, 1, 2))):
            label, cause = self._draw_pod_field(body)
            parts.append(label)
            causes.append(cause)
            has_drawn = True
        if dice.random() < 0.15:
            for label, cause in self._draw_job_fields(body):
                parts.append(label)
                causes.append(cause)
            has_drawn = True
        causes.append(list(find_twice(body)))
        neighbour = dice.choice(NEIGHBOURS)
        told += neighbour.told
        causes += [] if neighbour.told else [neighbour.labels.get(HOOK), *(one for _, one in neighbour.objects)]
        objects = neighbour.objects
        if any(part.split("-")[0] in NAMED for part in parts):
            objects = (*HERE_OBJECTS, *objects)
        if any(part.startswith("claim-") for part in parts) and CLAIM in self._definitions:
            objects = (*HERE_CLAIMS, *objects)
        if any(part.startswith("queue-") for part in parts):
            objects = (*HERE_QUEUES, *objects)
        if neighbour.name != "none":
            parts.append(neighbour.name)
        namespace = f"m{self._seed % 10_000}-{number}"
        placed = tuple((path.format(namespace), body) for path, body in objects)
        is_sure = len(parts) == 1 and not has_drawn
        return Made(
            number, namespace, neighbour.labels, placed, body, tuple(parts), tuple(told), is_sure, causes=tuple(causes)
        )

    def _job(self, number: int) -> Object:
        dice = self._dice
        container = {"name": "trainer", "image": f"{HERE}torch:1", "command": ["torchrun", "train.py"]}
        replicas = dice.choice((1, 2, 2, 3))
        spec = {
            "replicas": replicas,
            "elasticPolicy": {"minReplicas": dice.randint(1, replicas), "maxReplicas": dice.randint(replicas, 4)},
            "template": {"spec": {"containers": [container]}},
        }
        metadata = self._name(number)
        return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}

    def _name(self, number: int) -> Object:
        dice = self._dice
        kind = dice.random()
        if kind < 0.5:
            return {"name": f"job-{number}"}
        if kind < 0.6:
            return {"generateName": dice.choice(("bert-", "3d-unet-", "llama-3.1-", f"{'long-' * 11}"))}
        length = dice.choice((1, 2, 52, 55, 56, 57, 63, 64, 100, 200, 243, 252, 253))
        letters = "abcdefghijklmnopqrstuvwxyz0123456789"
        middle = [dice.choice(f"{letters}{letters}-.") for _ in range(length)]
        for at, one in enumerate(middle):
            if one in ".-" and (at in (0, length - 1) or middle[at - 1] in ".-"):
                middle[at] = dice.choice(letters)
        return {"name": "".join(middle)}

    # From schemas.

    def _draw_pod_field(self, body: Object) -> tuple[str, Object]:
        """One field of the pod, with a value of its type."""
        dice = self._dice
        pod = body["spec"]["template"].get("spec")
        if not isinstance(pod, dict) or not pod.get("containers"):
            return "drawn:nothing", {}
        place, kind = dice.choice(((pod, "PodSpec"), (pod, "PodSpec"), (pod["containers"][0], "Container")))
        schema = self._definitions[f"io.k8s.api.core.v1.{kind}"]["properties"]
        name = dice.choice(sorted(set(schema) - {"containers", "name", "command"}))
        place[name] = self._value(schema[name], name, 0)
        return f"drawn:{kind}.{name}", {name: [place[name], OTHER_NAMES.get(name, "")]}

    def _value(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        dice = self._dice
        if dice.random() < 0.03:
            return dice.choice((None, True, -1, 0, "", "x", [], {}, "ä", 2**40))
        ref = schema.get("$ref", "")
        if ref:
            found = self._definitions[ref.rpartition("/")[2]]
            if "properties" not in found:
                return self._value(found, name, depth)
            return self._object(found, depth)
        kind = schema.get("type")
        if kind == "array":
            return [self._value(schema["items"], name, depth + 1) for _ in range(dice.choice((1, 1, 2)))]
        if kind == "object":
            return {dice.choice(KEYS): self._value(schema.get("additionalProperties", {}), name, depth + 1)}
        if kind == "boolean":
            return dice.random() < 0.5
        if kind in ("integer", "number"):
            return dice.choice((0, 1, 1, 5, 30, 65534, 29500, -1))
        if schema.get("format") == "date-time":  # the API server does not say which field it cannot read
            return "2026-01-01T00:00:00Z"
        if schema.get("format") == "int-or-string":
            return dice.choice((1, "1", "http", 29500))
        return dice.choice(TEXTS)

    def _object(self, schema: Mapping[str, Any], depth: int) -> Object:
        """The required fields, and one or two more."""
        dice, fields = self._dice, schema["properties"]
        wanted = set(schema.get("required") or ()) if depth < 6 else set()
        wanted |= set(dice.sample(sorted(fields), min(len(fields), dice.choice((0, 1, 1, 2))))) if depth < 5 else set()
        return {name: self._value(fields[name], name, depth + 1) for name in sorted(wanted)}

    def _draw_job_fields(self, body: Object) -> Iterator[tuple[str, Object]]:
        drawn = self._specs.spec()
        fields = sorted(set(drawn) - {"template", "replicas"})
        for name in self._dice.sample(fields, min(len(fields), self._dice.choice((1, 1, 2)))):
            body["spec"][name] = copy.deepcopy(drawn[name])
            yield f"drawn:spec.{name}", {name: drawn[name]}


OTHER_NAMES: Final = {"overhead": ["Pod's Overhead", "Pod Overhead"]}  # what the API server calls a field itself
KEYS: Final = ("app", "example.com/team", "cpu", "memory", "a b", "kubernetes.io/hostname")
TEXTS: Final = (
    "Always", "Never", "ClusterFirst", "Default", "None", "Exists", "Equal", "In", "TCP", "Memory", "File", "linux",
    "NoSchedule", "DoNotSchedule", "kubernetes.io/hostname", "1Gi", "500m", "10", "light-0", "here-map", "missing-map",
    "/data", "data", "x", "a_b", "Not A Name", "127.0.0.1", "RuntimeDefault", "RestartContainer", "light", "",
)  # fmt: skip


def apply_part(body: Object, part: Part) -> None:
    spec = body["spec"]
    pod = spec["template"]["spec"]
    value = copy.deepcopy(part.value)
    if part.where == "spec":
        merge(spec, value)
    elif part.where == "template":
        merge(spec["template"], value)
    elif part.where == "container":
        merge(_trainer(pod), value)
    elif part.where == "side":
        pod["containers"].append(value)
    elif part.where == "first":
        pod["containers"].insert(0, value)
    elif part.where == "init":
        pod.setdefault("initContainers", []).append(value)
    elif part.where == "job+container":
        merge(_trainer(pod), value["container"])
        merge(body["metadata"], value["job"])
    elif part.where == "pod+container":
        merge(_trainer(pod), value["container"])
        merge(pod, value["pod"])
    elif part.where == "pod+":
        merge(_trainer(pod), {"volumeMounts": value.pop("volumeMounts")})
        merge(pod, value)
    else:
        merge(pod, value)


def has_part(body: Object, part: Part) -> bool:
    """Whether a job still has what this part has put there: others may have put something else in its place."""
    return all(_has(body, value) for value in part.value.values())


def _has(raw: object, value: object) -> bool:
    if raw == value:
        return True
    if (
        isinstance(raw, dict)
        and isinstance(value, dict)
        and value
        and all(_has(raw.get(k), v) for k, v in value.items())
    ):
        return True
    if isinstance(raw, list) and isinstance(value, list) and value and all(one in raw for one in value):
        return True
    inner = raw.values() if isinstance(raw, dict) else raw if isinstance(raw, list) else ()
    return any(_has(one, value) for one in inner)


def find_twice(raw: object) -> Iterator[str]:
    """The names that two items of one list have: each may be right without the other."""
    if isinstance(raw, dict):
        for one in raw.values():
            yield from find_twice(one)
    elif isinstance(raw, list):
        for key in ("name", "mountPath"):
            named = Counter(str(one[key]) for one in raw if isinstance(one, dict) and key in one)
            yield from (name for name, count in named.items() if count > 1)
        for one in raw:
            yield from find_twice(one)


def _trainer(pod: Object) -> Object:
    found: Object = next(c for c in pod["containers"] if c["name"] == "trainer")
    return found


def merge(into: Object, value: Object) -> None:
    """Lists of volumes, mounts and variables grow; everything else is replaced."""
    for key, one in value.items():
        if isinstance(one, dict) and isinstance(into.get(key), dict):
            merge(into[key], one)
        elif isinstance(one, list) and key in ("volumes", "volumeMounts", "env", "envFrom", "tolerations"):
            into[key] = [*(into.get(key) or ()), *one]
        else:
            into[key] = one
