"""Whole manifests as people write them, each with what becomes of it: it trains, or it names what is in the way.

They are written as in the public examples for other operators, with their habits and their mistakes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from chaos.light_nodes import HERE
from chaos.manifest_maker import Made, Object, limits, quota
from elasticjob_operator.api import names
from elasticjob_operator.convert import convert

IMAGE: Final = f"{HERE}pytorch/pytorch:2.8.0-cuda12.8"
PYTORCHJOB: Final = f"""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: pytorch-simple}}
spec:
  elasticPolicy: {{rdzvBackend: c10d, minReplicas: 1, maxReplicas: 3, maxRestarts: 100}}
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        metadata: {{annotations: {{sidecar.istio.io/inject: "false"}}}}
        spec:
          containers:
            - name: pytorch
              image: {IMAGE}
              imagePullPolicy: Always
              command: ["torchrun", "/workspace/examples/imagenet.py", "--arch=resnet18", "--epochs=20"]
              resources: {{limits: {{cpu: "8", memory: 16Gi, nvidia.com/gpu: "1"}}}}
"""


@dataclass(frozen=True, slots=True)
class Text:
    """One manifest: fields of the trainer, of its pod and of the job. `told`: one of these words; else it trains.

    `warned`: it trains, and a warning has one of these. `is_bare`: it has no other template than `spec` has.
    `trains_from`: the minor version of Kubernetes from which it trains although older ones have these words.
    """

    name: str
    container: str = ""
    pod: str = ""
    spec: str = ""
    told: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)  # of the namespace
    objects: tuple[tuple[str, Object], ...] = ()
    generated: bool = False
    trains_from: int | None = None
    warned: tuple[str, ...] = ()
    is_bare: bool = False


def one_volume(mode: str, zone: str = "") -> tuple[tuple[str, Object], ...]:
    """A claim, and the volume that is bound to it. `zone`: the only one from which it can be used."""
    size = {"storage": "1Gi"}
    claim = {"accessModes": [mode], "storageClassName": "", "volumeName": "{}-disk", "resources": {"requests": size}}
    disk: Object = {"accessModes": [mode], "storageClassName": "", "capacity": size, "hostPath": {"path": "/tmp"}}
    if zone:
        of_zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}
        disk["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [of_zone]}]}}
    return (
        ("/api/v1/persistentvolumes", {"metadata": {"name": "{}-disk"}, "spec": disk}),
        ("/api/v1/namespaces/{}/persistentvolumeclaims", {"metadata": {"name": "datasets"}, "spec": claim}),
    )


GPUS: Final = "resources: {limits: {nvidia.com/gpu: 1, cpu: '4', memory: 32Gi}}"
AMOUNTS: Final = "resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {cpu: 500m, memory: 1Gi}}"
MOUNTED: Final = "volumeMounts: [{name: data, mountPath: /data}]"
CLAIMED: Final = "volumes: [{name: data, persistentVolumeClaim: {claimName: datasets}}]"
SCRATCH: Final = """
volumes:
  - name: data
    ephemeral:
      volumeClaimTemplate:
        spec: {accessModes: [ReadWriteOnce], storageClassName: late-class, resources: {requests: {storage: 10Gi}}}
"""
RESTRICTED: Final = {"pod-security.kubernetes.io/enforce": "restricted"}

TEXTS: Final = (
    Text("shell-line", 'command: ["/bin/bash", "-c", "pip list && exec torchrun --nproc-per-node=gpu train.py"]'),
    Text("shell-without-exec", 'command: ["sh", "-c"]\nargs: ["set -ex; cd /workspace; torchrun train.py --epochs 3"]'),
    Text("args-without-command", "args: [torchrun, train.py, --batch-size, '32']"),
    Text("image-entry-point", "args: [--epochs, '3']\ncommand: null", told=("with torchrun",)),
    Text("plain-python", "command: [python, train.py]", told=("with torchrun",)),
    Text("accelerate", "command: [accelerate, launch, train.py]", told=("with torchrun",)),
    Text("mpirun", 'command: [mpirun, -np, "8", python, train.py]', told=("with torchrun",)),
    Text("shm", "volumeMounts: [{name: dshm, mountPath: /dev/shm}]",
         "volumes: [{name: dshm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}]"),
    Text("istio", pod="containers: [{name: istio-proxy, image: here/proxyv2, command: [sleep, infinity]}]",
         spec="template: {metadata: {labels: {sidecar.istio.io/inject: 'true'}, annotations: "
              "{traffic.sidecar.istio.io/excludeInboundPorts: '29500', prometheus.io/scrape: 'true'}}}"),
    Text("download", "volumeMounts: [{name: data, mountPath: /data}]", """
        volumes: [{name: data, emptyDir: {}}]
        initContainers:
          - {name: download, image: here/aws-cli, command: [sh, -c, "aws s3 sync s3://b /data"],
             volumeMounts: [{name: data, mountPath: /data}]}"""),
    Text("download-fails", pod="""
        initContainers:
          - {name: download-data, image: here/aws-cli, command: [sh, -c, "aws s3 sync s3://b /data; exit 1"]}
        """, told=("download-data",)),
    Text("log-shipper", pod="""
        initContainers: [{name: log-shipper, image: here/fluent-bit, restartPolicy: Always, command: [sleep, infinity]}]
        """, told=("initContainers: log-shipper",), trains_from=29),
    Text("secret-missing", "envFrom: [{secretRef: {name: wandb-api-key}}]", told=("wandb-api-key",)),
    Text("secret-key-missing", "env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}]",
         told=('"hf"',)),
    Text("private-image", "image: registry.example.com/team/train:v3", "imagePullSecrets: [{name: regcred}]",
         told=("registry.example.com/team/train:v3",)),
    Text("gpu-nodes", GPUS, """
        nodeSelector: {cloud.google.com/gke-accelerator: nvidia-h100-80gb}
        tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]""",
         told=("nodeSelector: cloud.google.com/gke-accelerator",)),
    Text("gpu-affinity", GPUS, """
        affinity:
          nodeAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              nodeSelectorTerms: [{matchExpressions: [{key: node.kubernetes.io/instance-type, operator: In,
                                                       values: [p5.48xlarge]}]}]""", told=("affinity.nodeAffinity",)),
    Text("gpus", GPUS, "tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]"),
    Text("requests-only-gpu", "resources: {requests: {nvidia.com/gpu: 1}}", told=("nvidia.com/gpu",)),
    Text("requests-only", "resources: {requests: {cpu: 500m, memory: 1Gi, ephemeral-storage: 1Gi}}"),
    Text("disk", "resources: {requests: {ephemeral-storage: 2Ti}}", told=("ephemeral-storage",)),
    Text("mig", "resources: {limits: {nvidia.com/mig-3g.40gb: 1}}", told=("nvidia.com/mig-3g.40gb",)),
    Text("amd", "resources: {limits: {amd.com/gpu: 8}}", told=("amd.com/gpu",)),
    Text("gaudi", "resources: {limits: {habana.ai/gaudi: 8, hugepages-2Mi: 95000Mi, memory: 100Gi}}",
         told=("habana.ai/gaudi",)),
    Text("tpu", "resources: {limits: {google.com/tpu: 4}}", """
        nodeSelector: {cloud.google.com/gke-tpu-accelerator: tpu-v5p-slice, cloud.google.com/gke-tpu-topology: 2x2x1}
        """, told=("nodeSelector: cloud.google.com/gke-tpu",)),
    Text("rdma", """
        resources: {limits: {nvidia.com/gpu: 1, rdma/hca_shared_devices_a: 1}}
        securityContext: {capabilities: {add: [IPC_LOCK]}}""", told=("rdma/hca_shared_devices_a",)),
    Text("spread", pod="""
        topologySpreadConstraints:
          - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule,
             labelSelector: {matchLabels: {elasticjob.dev/job-name: spread}}}"""),
    Text("spread-by-zone", pod="""
        topologySpreadConstraints:
          - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule,
             labelSelector: {matchLabels: {app: train}}}""", told=("topology spread",)),
    Text("priority", pod="priorityClassName: high-priority", told=("high-priority",)),
    Text("nvidia-runtime", GPUS, "runtimeClassName: nvidia", told=('RuntimeClass "nvidia"', "nvidia")),
    Text("non-root", "securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true}",
         "securityContext: {runAsNonRoot: true, runAsUser: 1000, runAsGroup: 1000, fsGroup: 1000}"),
    Text("non-root-without-user", pod="securityContext: {runAsNonRoot: true}", told=("runAsNonRoot",)),
    Text("restricted", labels=RESTRICTED, told=("PodSecurity",)),
    Text("restricted-and-fit", """
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}""",
         "securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}",
         labels=RESTRICTED),
    Text("host-network", "ports: [{containerPort: 29500, name: rdzv}]",
         "{hostNetwork: true, dnsPolicy: ClusterFirstWithHostNet, hostIPC: true}"),
    Text("one-writer-disk", "volumeMounts: [{name: data, mountPath: /data}]", """
        volumes: [{name: data, persistentVolumeClaim: {claimName: datasets}}]
        affinity:
          podAntiAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              - {topologyKey: kubernetes.io/hostname, labelSelector: {matchExpressions: [{key: elasticjob.dev/job-name,
                 operator: In, values: [one-writer-disk]}]}}""", objects=one_volume("ReadWriteOnce"),
         told=("Multi-Attach",)),
    Text("shared-disk", "volumeMounts: [{name: data, mountPath: /data}]",
         "volumes: [{name: data, persistentVolumeClaim: {claimName: datasets}}]", objects=one_volume("ReadWriteMany")),
    Text("pod-address", """
        env:
          - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
          - {name: MASTER_ADDR, value: $(POD_IP)}
          - {name: NCCL_SOCKET_IFNAME, value: eth0}
          - {name: WORLD_SIZE, value: "2"}"""),
    Text("hooks", 'lifecycle: {preStop: {exec: {command: [sh, -c, "sleep 15"]}}}',
         "terminationGracePeriodSeconds: 3600"),
    Text("no-grace", pod="terminationGracePeriodSeconds: 0"),
    Text("names", pod="{hostname: trainer, subdomain: trainers, serviceAccountName: default}"),
    Text("account-missing", pod="serviceAccountName: irsa-s3-reader", told=("irsa-s3-reader",)),
    Text("two-with-gpus", GPUS, f"""
        containers: [{{name: evaluator, image: {HERE}eval, command: [sleep, infinity],
                       resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]"""),
    Text("generated", generated=True),
    Text("number-in-args", "args: [torchrun, train.py, --epochs, 3]", told=("args",)),
    Text("number-in-environment", "env: [{name: OMP_NUM_THREADS, value: 4}]", told=("env[OMP_NUM_THREADS]",)),
    Text("command-as-text", "command: torchrun train.py", told=("command",)),
    Text("flag-as-label", pod="nodeSelector: {gpu: true}", told=("nodeSelector[gpu]",)),
    Text("windows", pod="nodeSelector: {kubernetes.io/os: windows}", told=("kubernetes.io/os",)),
    # Habits from other operators, and from charts.
    Text("run-policy-of-another", spec="""
        runPolicy: {cleanPodPolicy: None, backoffLimit: 3, ttlSecondsAfterFinished: 3600,
                    schedulingPolicy: {minAvailable: 2, queue: research}}
        elasticPolicy: {minReplicas: 2, maxReplicas: 4, rdzvBackend: c10d, nProcPerNode: 4}"""),
    Text("replica-specs", spec="pytorchReplicaSpecs: {Master: {replicas: 1}, Worker: {replicas: 3}}"),
    Text("quoted-replicas", spec='replicas: "2"', told=("spec.replicas",)),
    Text("quoted-processes", spec='nprocPerNode: "2"'),
    Text("empty-values", "{resources: {}, env: [], securityContext: {}, ports: null, lifecycle: null}", """
        {nodeSelector: {}, tolerations: [], affinity: {}, imagePullSecrets: [], volumes: null, securityContext: {},
         priorityClassName: "", schedulerName: "", runtimeClassName: null, serviceAccountName: ""}""",
         spec="runPolicy: {}\nscaling: null\nhealth: {}"),
    Text("written-defaults", """
        {terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File, imagePullPolicy: IfNotPresent}
        """, """
        {restartPolicy: Never, dnsPolicy: ClusterFirst, schedulerName: default-scheduler, securityContext: {},
         terminationGracePeriodSeconds: 30, enableServiceLinks: true}"""),
    Text("policies", """
        resources: {requests: {cpu: "1", memory: 1Gi}, limits: {cpu: "1", memory: 1Gi}}
        securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]},
                          runAsNonRoot: true, runAsUser: 1000}
        volumeMounts: [{name: tmp, mountPath: /tmp}]""",
         "{automountServiceAccountToken: false, hostUsers: false, volumes: [{name: tmp, emptyDir: {sizeLimit: 1Gi}}]}",
         spec="template: {metadata: {labels: {app.kubernetes.io/name: train, cost-center: '42'}}}"),
    Text("probes", """
        startupProbe: {tcpSocket: {port: 29500}, failureThreshold: 60}
        readinessProbe: {httpGet: {path: /healthz, port: 8080}}
        livenessProbe: {exec: {command: [pgrep, python]}, initialDelaySeconds: 60}"""),
    Text("life", """
        lifecycle:
          postStart: {exec: {command: [sh, -c, "mkdir -p /tmp/cache"]}}
          preStop: {exec: {command: [sleep, "5"]}}"""),
    Text("intel", "resources: {limits: {gpu.intel.com/i915: 1}}", told=("gpu.intel.com/i915",)),
    Text("claim-of-a-template", "resources: {claims: [{name: gpu}]}",
         "resourceClaims: [{name: gpu, resourceClaimTemplateName: single-gpu}]", told=("single-gpu", "claim")),
    Text("spread-if-possible", pod="""
        topologySpreadConstraints:
          - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway,
             labelSelector: {matchLabels: {app: train}}}"""),
    Text("scratch-claim", "volumeMounts: [{name: scratch, mountPath: /scratch}]", """
        volumes:
          - name: scratch
            ephemeral:
              volumeClaimTemplate:
                spec: {accessModes: [ReadWriteOnce], storageClassName: fast-ssd, resources: {requests: {storage: 1Ti}}}
        """, told=("fast-ssd", "volumes[")),
    Text("projected", "volumeMounts: [{name: all, mountPath: /all, readOnly: true}]", """
        volumes:
          - name: all
            projected:
              sources:
                - {serviceAccountToken: {path: token, audience: vault, expirationSeconds: 7200}}
                - {configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}}
                - {downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}"""),
    Text("seccomp", pod="securityContext: {seccompProfile: {type: Localhost, localhostProfile: profiles/train.json}}"),
    Text("important", pod="priorityClassName: system-cluster-critical"),
    Text("volcano", pod="schedulerName: volcano", told=("is volcano running", "PodGroup")),
    Text("yunikorn", pod="schedulerName: yunikorn", told=("is yunikorn running",),
         spec="template: {metadata: {labels: {applicationId: train-1, queue: root.research}}}"),
    Text("spot", pod="""
        tolerations:
          - {key: cloud.google.com/gke-spot, operator: Equal, value: "true", effect: NoSchedule}
          - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 10}"""),
    Text("line-in-a-list", 'command: ["torchrun train.py --epochs 3"]', told=("torchrun train.py",)),
    Text("references", """
        command: [torchrun, "--nproc-per-node=$(PROCESSES)", train.py, "--data=$(NO_SUCH)/$(ROOT)"]
        env: [{name: PROCESSES, value: "1"}, {name: ROOT, value: /data}, {name: BOTH, value: "$(ROOT)/$(PROCESSES)"},
              {name: ROOT, value: /other}]"""),
    Text("optional-values", """
        env:
          - {name: TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token, optional: true}}}
          - {name: CPUS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
        envFrom: [{configMapRef: {name: overrides, optional: true}}]"""),
    Text("amount-in-words", "resources: {limits: {nvidia.com/gpu: one}}", told=("quantit", "nvidia.com/gpu")),
    Text("small-letters", "resources: {limits: {memory: 16gi}}", told=("quantit", "memory")),
    Text("flag-as-annotation", spec="template: {metadata: {annotations: {sidecar.istio.io/inject: false}}}",
         told=("annotations[sidecar.istio.io/inject]",)),
    Text("version-as-image", "image: 2.8", told=("image",)),
    Text("no-name", "name: null", told=("name",)),
    Text("name-in-capitals", "name: PyTorch_Trainer", told=("PyTorch_Trainer",)),
    # Networks, disks and devices of the clouds, as their pages show them.
    Text("infiniband", """
        securityContext: {privileged: true, capabilities: {add: [IPC_LOCK, SYS_RESOURCE]}}
        volumeMounts: [{name: devinf, mountPath: /dev/infiniband}, {name: shm, mountPath: /dev/shm}]
        env: [{name: NCCL_IB_HCA, value: "=mlx5_0,mlx5_1"}, {name: NCCL_SOCKET_IFNAME, value: "^lo,docker0"}]""", """
        {hostNetwork: true, dnsPolicy: ClusterFirstWithHostNet, hostIPC: true, volumes: [
          {name: devinf, hostPath: {path: /dev/infiniband}},
          {name: shm, emptyDir: {medium: Memory, sizeLimit: 32Gi}}]}"""),
    Text("efa", """
        resources: {limits: {nvidia.com/gpu: 8, hugepages-2Mi: 5120Mi, vpc.amazonaws.com/efa: 4, memory: 64Gi}}
        """, told=("vpc.amazonaws.com/efa",)),
    Text("huge-pages-alone", "resources: {limits: {hugepages-2Mi: 512Mi}}", told=("HugePages", "hugepages")),
    Text("tcpx", "volumeMounts: [{name: tcpx-socket, mountPath: /tmp/tcpx}]", """
        volumes: [{name: tcpx-socket, emptyDir: {}}, {name: nvidia, hostPath: {path: /home/kubernetes/bin/nvidia}}]
        containers:
          - {name: tcpx-daemon, image: here/tcpgpudmarxd, command: [sleep, infinity],
             securityContext: {privileged: true},
             volumeMounts: [{name: tcpx-socket, mountPath: /tmp}, {name: nvidia, mountPath: /usr/local/nvidia}]}"""),
    Text("tcpxo", pod="""
        initContainers:
          - {name: tcpxo-daemon, image: here/fastrak, restartPolicy: Always, command: [sleep, infinity],
             startupProbe: {grpc: {port: 60000}, initialDelaySeconds: 5, periodSeconds: 5, failureThreshold: 30}}
        """, spec="""
        template:
          metadata:
            annotations:
              devices.gke.io/container.tcpxo-daemon: "- path: /dev/nvidia0\n- path: /dev/nvidiactl\n"
              networking.gke.io/interfaces: '[{"interfaceName":"eth0","network":"default"}]'
        """, told=("initContainers",), trains_from=29),
    Text("several-networks", "resources: {limits: {openshift.io/sriov_ib: 1}}",
         spec="template: {metadata: {annotations: {k8s.v1.cni.cncf.io/networks: sriov-ib-0}}}",
         told=("openshift.io/sriov_ib",)),
    Text("bucket", "volumeMounts: [{name: bucket, mountPath: /bucket}]", """
        volumes:
          - {name: bucket, csi: {driver: gcsfuse.csi.storage.gke.io, readOnly: true,
                                 volumeAttributes: {bucketName: training, mountOptions: implicit-dirs}}}""",
         spec="template: {metadata: {annotations: {gke-gcsfuse/volumes: 'true'}}}",
         told=("gcsfuse.csi.storage.gke.io",)),
    Text("parallel-files", "volumeMounts: [{name: fsx, mountPath: /fsx, subPath: team/run-1}]",
         "volumes: [{name: fsx, persistentVolumeClaim: {claimName: fsx-lustre-claim}}]", told=("fsx-lustre-claim",)),
    Text("any-node", pod="tolerations: [{operator: Exists}]"),
    Text("preferences", pod="""
        affinity:
          nodeAffinity:
            preferredDuringSchedulingIgnoredDuringExecution:
              - {weight: 100, preference: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In,
                 values: [us-east-1a]}]}}
          podAffinity:
            preferredDuringSchedulingIgnoredDuringExecution:
              - {weight: 50, podAffinityTerm: {topologyKey: kubernetes.io/hostname,
                 labelSelector: {matchLabels: {elasticjob.dev/job-name: preferences}}}}"""),
    Text("gang-labels", spec="""
        template:
          metadata:
            annotations: {scheduling.k8s.io/group-name: train, scheduling.volcano.sh/queue-name: default,
                          kueue.x-k8s.io/podset-preferred-topology: kubernetes.io/hostname}
            labels: {pod-group.scheduling.sigs.k8s.io/name: train, runai/queue: team}"""),
    Text("bash-script", """
        command: [/bin/bash, -c, --]
        args:
          - |
            set -euxo pipefail
            ulimit -l unlimited || true
            exec torchrun --nnodes="${WORLD_SIZE:-1}" --rdzv-conf timeout=900 train.py "$@"
        stdin: true
        tty: true
        workingDir: /workspace"""),
    Text("whereabouts", """
        env:
          - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
          - {name: HOST_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
          - {name: TEAM, valueFrom: {fieldRef: {fieldPath: "metadata.labels['team']"}}}
          - {name: MEMORY, valueFrom: {resourceFieldRef: {containerName: pytorch, resource: requests.memory,
                                                          divisor: 1Mi}}}
        volumeMounts: [{name: about, mountPath: /etc/podinfo}]""", """
        volumes:
          - name: about
            downwardAPI:
              defaultMode: 0444
              items:
                - {path: annotations, fieldRef: {fieldPath: metadata.annotations}}
                - {path: cpus, resourceFieldRef: {containerName: pytorch, resource: limits.cpu}}""",
         spec="template: {metadata: {labels: {team: research}}}"),
    Text("config-files", """
        volumeMounts: [{name: config, mountPath: /etc/train/run.yaml, subPath: run.yaml, readOnly: true}]
        envFrom: [{prefix: CFG_, configMapRef: {name: run-config}}]""", """
        volumes: [{name: config, configMap: {name: run-config, defaultMode: 0755, items: [{key: run.yaml,
                                                                                           path: run.yaml}]}}]""",
         objects=(("/api/v1/namespaces/{}/configmaps", {"metadata": {"name": "run-config"},
                                                        "data": {"run.yaml": "lr: 3e-4"}}),)),
    Text("hardened", """
        securityContext: {allowPrivilegeEscalation: false, seLinuxOptions: {level: "s0:c123,c456"}, procMount: Default,
                          capabilities: {drop: [ALL], add: [SYS_PTRACE]}, seccompProfile: {type: RuntimeDefault}}""",
         "securityContext: {fsGroup: 2000, fsGroupChangePolicy: OnRootMismatch, supplementalGroups: [3000, 4000]}"),
    Text("names-of-hosts", "ports: [{containerPort: 29500, name: c10d, protocol: TCP}, {containerPort: 6006}]", """
        {hostAliases: [{ip: 10.0.0.5, hostnames: [license.corp, data.corp]}], dnsPolicy: None,
         dnsConfig: {nameservers: [10.0.0.10], searches: [corp.example.com], options: [{name: ndots, value: "2"}]}}"""),
    Text("claim-of-one-request", "resources: {claims: [{name: gpus, request: gpu-0}]}",
         "resourceClaims: [{name: gpus, resourceClaimName: shared-gpus}]", told=("shared-gpus", "claim")),
    # Specs of other operators under our kind, and fields that are nearly right.
    Text("trainjob", is_bare=True, told=("template is required", "spec.template: is required"), spec="""
        runtimeRef: {name: torch-distributed}
        trainer: {image: here/torch, numNodes: 2, numProcPerNode: 8, command: [torchrun, train.py]}"""),
    Text("volcano-tasks", is_bare=True, told=("template is required", "spec.template: is required"), spec="""
        minAvailable: 3
        schedulerName: volcano
        policies: [{event: PodEvicted, action: RestartJob}]
        plugins: {pytorch: ["--master=master", "--worker=worker", "--port=23456"]}
        tasks: [{name: worker, replicas: 2, template: {spec: {containers: [{name: worker, image: here/torch}]}}}]"""),
    Text("jobset", is_bare=True, told=("template is required", "spec.template: is required"), spec="""
        failurePolicy: {maxRestarts: 3}
        replicatedJobs: [{name: workers, replicas: 1, template: {spec: {parallelism: 2, completions: 2}}}]"""),
    Text("rayjob", is_bare=True, told=("template is required", "spec.template: is required"), spec="""
        entrypoint: python train.py
        shutdownAfterJobFinishes: true
        rayClusterSpec: {rayVersion: 2.46.0, workerGroupSpecs: [{replicas: 2, groupName: gpu}]}"""),
    Text("containers-in-template", is_bare=True, told=("template",),
         spec="template: {containers: [{name: trainer, image: here/torch, command: [torchrun, train.py]}]}"),
    Text("indexed-job", "env: [{name: JOB_COMPLETION_INDEX, value: '0'}]", spec="""
        parallelism: 2
        completions: 2
        completionMode: Indexed
        backoffLimit: 0
        podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}]}"""),
    Text("rules-of-a-job", told=("failurePolicy.rules",), spec="""
        failurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}]}"""),
    Text("replica-spec", spec="template: {replicas: 4, restartPolicy: OnFailure}",
         warned=("replicas belongs to spec",)),
    Text("small-letters-of-a-field", pod="nodeselector: {gpu: h100}", warned=("spec.template.spec.nodeSelector?",)),
    Text("capabilities-of-the-pod", pod="securityContext: {capabilities: {add: [IPC_LOCK]}}",
         warned=("capabilities belongs to the container",)),
    Text("affinity-misspelt", pod="""
        affinity:
          nodeAffinity:
            requiredDuringSchedulingRequiredDuringExecution:
              nodeSelectorTerms: [{matchExpressions: [{key: gpu, operator: Exists}]}]""",
         warned=("nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution?",)),
    Text("shm-misspelt", "volumeMounts: [{name: dshm, mountPath: /dev/shm}]",
         "volumes: [{name: dshm, emptyDir: {medium: Memory, sizelimit: 16Gi}}]", warned=("emptyDir.sizeLimit?",)),
    Text("probe-misspelt", "livenessProbe: {exec: {command: [pgrep, python]}, initialDelay: 600}",
         warned=("livenessProbe.initialDelaySeconds?",)),
    Text("capitals", "securityContext: {capabilities: {Add: [IPC_LOCK]}}", warned=("capabilities.add?",)),
    Text("limits-of-the-container", "limits: {nvidia.com/gpu: 1}", warned=("limits belongs to its resources",)),
    Text("selector-of-the-container", "nodeSelector: {gpu: h100}", warned=("nodeSelector belongs to the pod",)),
    Text("unset-limit", "resources: {limits: {cpu: 1, memory: }}", told=("limits[memory] is empty",)),
    Text("unset-label", spec="template: {metadata: {labels: {version: }}}", told=("labels[version] is empty",)),
    Text("unset-word", "command: [torchrun, null, train.py]", told=("command[1] is empty",)),
    Text("short-device", "resources: {limits: {gpu: 1}}", told=("gpu",)),
    Text("half-a-gpu", "resources: {limits: {nvidia.com/gpu: 0.5}}", told=("nvidia.com/gpu",)),
    Text("variables-as-a-map", "env: {NCCL_DEBUG: INFO}", told=("env",)),
    Text("args-as-text", 'command: [torchrun]\nargs: "train.py --epochs 3"', told=("args",)),
    Text("secrets-as-names", pod="imagePullSecrets: [regcred]", told=("imagePullSecrets",)),
    Text("source-as-a-name", "envFrom: [{secretRef: wandb}]", told=("secretRef", "envFrom")),
    Text("exists-in-small-letters", pod="tolerations: [{key: nvidia.com/gpu, operator: exists}]",
         told=("tolerations",)),
    Text("claim-by-another-name", "volumeMounts: [{name: data, mountPath: /data}]",
         "volumes: [{name: data, pvc: {claimName: datasets}}]", warned=("volumes[0] has no source but pvc",)),
    Text("duration-in-words", spec="runPolicy: {ttlSecondsAfterFinished: 1h}", told=("ttlSecondsAfterFinished",)),
    Text("quoted-bounds", spec='elasticPolicy: {minReplicas: "1", maxReplicas: "4"}',
         told=("elasticPolicy.minReplicas", "elasticPolicy.maxReplicas")),
    Text("queue-of-volcano", spec="priorityClassName: high\nqueue: research\nminAvailable: 2"),
    Text("meshes-and-autoscalers", spec="""
        template:
          metadata:
            annotations: {linkerd.io/inject: enabled, config.linkerd.io/skip-outbound-ports: "29400,29500",
                          sidecar.istio.io/nativeSidecar: "true", karpenter.sh/do-not-disrupt: "true",
                          cluster-autoscaler.kubernetes.io/safe-to-evict: "false",
                          container.apparmor.security.beta.kubernetes.io/pytorch: unconfined}"""),
    Text("wrong-place", spec="restartPolicy: OnFailure\nnproc_per_node: 8"),
    # Node pools of the clouds, and what their pages say of them.
    Text("eks-pool", GPUS, """
        nodeSelector: {eks.amazonaws.com/nodegroup: p5, node.kubernetes.io/instance-type: p5.48xlarge}
        tolerations: [{key: nvidia.com/gpu, operator: Exists}]""", told=("nodeSelector: eks.amazonaws.com/nodegroup",)),
    Text("aks-pool", GPUS, """
        nodeSelector: {kubernetes.azure.com/scalesetpriority: spot}
        tolerations: [{key: kubernetes.azure.com/scalesetpriority, operator: Equal, value: spot, effect: NoSchedule}]
        """, told=("nodeSelector: kubernetes.azure.com/scalesetpriority",)),
    Text("gke-class", GPUS, "nodeSelector: {cloud.google.com/compute-class: a3, cloud.google.com/gke-spot: 'true'}",
         told=("nodeSelector: cloud.google.com/",)),
    Text("karpenter", GPUS, "nodeSelector: {karpenter.sh/capacity-type: on-demand}",
         told=("nodeSelector: karpenter.sh",)),
    Text("not-on-arm", pod="""
        affinity:
          nodeAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/arch, operator: NotIn, values: [arm64]},
                                                      {key: node.kubernetes.io/exclude, operator: DoesNotExist}]}]"""),
    Text("windows-tolerated", pod="tolerations: [{key: os, operator: Equal, value: windows, effect: NoSchedule}]"),
    Text("spread-by-keys", pod="""
        topologySpreadConstraints:
          - {maxSkew: 1, minDomains: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule,
             nodeTaintsPolicy: Honor, nodeAffinityPolicy: Honor, matchLabelKeys: [pod-template-hash],
             labelSelector: {matchLabels: {app: spread-by-keys}}}""",
         spec="template: {metadata: {labels: {app: spread-by-keys}}}"),
    Text("alone-by-keys", pod="""
        affinity:
          podAntiAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              - {topologyKey: kubernetes.io/hostname, matchLabelKeys: [pod-template-hash],
                 labelSelector: {matchLabels: {app: alone-by-keys}}}""",
         spec="template: {metadata: {labels: {app: alone-by-keys}}}"),
    Text("one-port-a-node", "ports: [{containerPort: 31999, hostPort: 31999, name: metrics}]"),
    # What tools beside us write into templates.
    Text("queue-of-the-pods", spec="template: {metadata: {labels: {kueue.x-k8s.io/queue-name: here-queue}}}",
         warned=("metadata.labels of the job",)),
    Text("vault", spec="""
        template:
          metadata:
            annotations: {vault.hashicorp.com/agent-inject: "true", vault.hashicorp.com/role: train,
                          vault.hashicorp.com/agent-inject-secret-hf: secret/data/hf}"""),
    Text("tracked", spec="""
        template:
          metadata:
            finalizers: [foregroundDeletion]
            labels: {argocd.argoproj.io/instance: train, helm.sh/chart: train-1.2.3}
            annotations: {alpha.jobset.sigs.k8s.io/exclusive-topology: gke-nodepool, ad.datadoghq.com/x: ""}
        """),
    Text("unresolved-image", "image: '${IMAGE}:${TAG}'", told=("${IMAGE}",)),
    Text("pinned-image", f"image: '{HERE}torch@sha256:{'0' * 64}'\nimagePullPolicy: Always"),
    Text("database-proxy", "env: [{name: DB, value: 127.0.0.1}]", f"""
        containers:
          - {{name: cloud-sql-proxy, image: '{HERE}proxy:2', command: [sleep, infinity], restartPolicy: Never,
             securityContext: {{runAsNonRoot: true, runAsUser: 65532}}, resources: {{requests: {{cpu: 100m}}}}}}
          - {{name: exporter, image: '{HERE}dcgm', command: [sleep, infinity],
             ports: [{{containerPort: 9400, name: metrics}}]}}"""),
    Text("init-and-sidecar", pod=f"""
        initContainers:
          - {{name: wait-for-data, image: '{HERE}busybox', command: [sh, -c, "until ls /data; do sleep 1; done"]}}
          - {{name: mesh, image: '{HERE}mesh', restartPolicy: Always, command: [sleep, infinity],
             lifecycle: {{preStop: {{exec: {{command: [sleep, "5"]}}}}}}}}""",
         told=("initContainers: mesh", "initContainers[1].lifecycle", "is mesh"), trains_from=29),
    Text("uv", "command: [uv, run, --no-sync, torchrun, train.py]"),
    Text("conda", "command: [conda, run, --no-capture-output, -n, train, torchrun, --nproc-per-node=1, train.py]"),
    Text("numactl", "command: [numactl, --cpunodebind=0, --membind=0, torchrun, train.py]"),
    Text("deepspeed", "command: [deepspeed, --num_gpus=8, train.py, --deepspeed, ds.json]",
         told=("deepspeed starts processes of its own",)),
    # Ends, knobs and volumes.
    Text("grace-of-a-day", pod="terminationGracePeriodSeconds: 86400"),
    Text("pre-stop-without-end", "lifecycle: {preStop: {exec: {command: [sleep, infinity]}}}"),
    Text("signal-to-stop", "lifecycle: {stopSignal: SIGUSR1}", "os: {name: linux}"),
    Text("resized-in-place", """
        resizePolicy:
          - {resourceName: cpu, restartPolicy: NotRequired}
          - {resourceName: memory, restartPolicy: NotRequired}
        resources: {requests: {cpu: "1", memory: 1Gi}}"""),
    Text("less-than-its-container", "resources: {requests: {cpu: '4'}}", "resources: {limits: {cpu: '2'}}",
         told=("resources",)),
    Text("own-users-and-host-network", pod="{hostUsers: false, hostNetwork: true}", told=("hostUsers", "hostNetwork")),
    Text("sysctls", pod="""
        securityContext: {sysctls: [{name: net.core.somaxconn, value: "4096"}], seLinuxChangePolicy: Recursive,
                          supplementalGroupsPolicy: Merge}"""),
    Text("docker-socket", "volumeMounts: [{name: docker, mountPath: /var/run/docker.sock}]",
         "volumes: [{name: docker, hostPath: {path: /var/run/docker.sock, type: Socket}}]", told=("docker.sock",)),
    Text("large-scratch", "volumeMounts: [{name: tmp, mountPath: /tmp}, {name: w, mountPath: /w, subPath: b}]", f"""
        volumes: [{{name: tmp, emptyDir: {{medium: Memory, sizeLimit: 2Ti}}}},
                  {{name: w, image: {{reference: '{HERE}weights:1', pullPolicy: IfNotPresent}}}}]""",
         told=("image became emptyDir",), trains_from=35),
    Text("empty-fields", "terminationMessagePolicy: ''", pod="""
        runtimeClassName: ""
        priorityClassName: ""
        subdomain: ""
        hostname: ""
        nodeSelector:
        terminationGracePeriodSeconds:"""),
    Text("dollars", "args: [torchrun, train.py, '--run=$$(HOSTNAME)', '--cost=5$']\ncommand: [env]\n"
                    "env: [{name: A, value: x}, {name: A, value: $(A)y}, {name: PYTHONPATH, value: /app}]"),
    # Nearly right.
    Text("equals-in-a-name", "env: [{name: A=B, value: x}]", told=("env",)),
    Text("port-names-twice", "ports: [{containerPort: 1, name: a}, {containerPort: 2, name: a}]", told=("ports",)),
    Text("grace-below-nothing", pod="terminationGracePeriodSeconds: -1", told=("terminationGracePeriodSeconds",)),
    Text("affinity-in-small-letters", pod="""
        affinity:
          nodeAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              nodeSelectorTerms: [{matchExpressions: [{key: gpu, operator: in, values: [h100]}]}]""",
         told=("affinity", "operator")),
    Text("seconds-of-no-eviction", told=("tolerations",),
         pod="tolerations: [{key: a, operator: Exists, effect: NoSchedule, tolerationSeconds: 9}]"),
    Text("no-replicas", spec="replicas: 0", told=("replicas",)),
    Text("none-at-least", spec="elasticPolicy: {minReplicas: 0, maxReplicas: 4}", told=("minReplicas",)),
    Text("quoted-suspend", spec='runPolicy: {suspend: "false"}', told=("suspend",)),
    Text("processes-in-words", spec="nprocPerNode: eight", told=("nprocPerNode",)),
    Text("list-of-templates", is_bare=True, told=("template",), spec=f"""
        template: [{{spec: {{containers: [{{name: t, image: '{HERE}torch', command: [torchrun, train.py]}}]}}}}]"""),
    # Claims, quotas and limits of the namespace, and nodes by their names.
    Text("claims-at-most", MOUNTED, SCRATCH, objects=(limits(type="PersistentVolumeClaim", max={"storage": "1Gi"}),),
         told=("maximum storage usage", "volumes[")),
    Text("quota-of-claims", MOUNTED, SCRATCH, objects=(quota(persistentvolumeclaims="0"),),
         told=("team-quota", "volumes[")),
    Text("disk-elsewhere", MOUNTED, CLAIMED, objects=one_volume("ReadWriteMany", zone="us-east-1b"),
         told=("PersistentVolumeClaim datasets",)),
    Text("disk-missing", MOUNTED, CLAIMED, objects=one_volume("ReadWriteMany")[1:],
         told=("PersistentVolumeClaim datasets",)),
    Text("node-by-its-name", pod="""
        affinity:
          nodeAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [gone-node]}]}]""",
         told=("affinity.nodeAffinity",)),
    # What LimitRanges and quotas allow, and classes of devices.
    Text("ratio", "resources: {requests: {cpu: 100m}, limits: {cpu: 4}}",
         objects=(limits(maxLimitRequestRatio={"cpu": "2"}),), told=("limit to request ratio",)),
    Text("ratio-of-one", AMOUNTS, objects=(limits(maxLimitRequestRatio={"cpu": "1", "memory": "1"}),)),
    Text("at-least", "resources: {requests: {cpu: 100m, memory: 1Gi}}", objects=(limits(min={"cpu": "250m"}),),
         told=("minimum cpu",)),
    Text("at-least-and-fit", AMOUNTS, objects=(limits(min={"cpu": "250m", "memory": "512Mi"}),)),
    Text("quota-and-fit", AMOUNTS, objects=(quota(**{"limits.cpu": "9", "requests.memory": "9Gi", "pods": "9"}),)),
    Text("quota-of-few-pods", spec="replicas: 4", objects=(quota(pods="3"),)),
    Text("quota-of-other-objects", objects=(quota(secrets="0", configmaps="0"),)),
    Text("warned-of-security", labels={"pod-security.kubernetes.io/warn": "restricted"}),
    Text("restricted-container", """
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, runAsNonRoot: true,
                          runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}""", labels=RESTRICTED),
    Text("five-apart", pod="""
        affinity:
          podAntiAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              - {topologyKey: kubernetes.io/hostname,
                 labelSelector: {matchLabels: {elasticjob.dev/job-name: five-apart}}}
        """, spec="replicas: 5\nelasticPolicy: {minReplicas: 5, maxReplicas: 5}",
         told=("affinity.podAntiAffinity",)),
    Text("together", pod="""
        affinity:
          podAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              - {topologyKey: kubernetes.io/hostname,
                 labelSelector: {matchLabels: {elasticjob.dev/job-name: together}}}
        """),
    Text("pasted-pod", """
        terminationMessagePath: /dev/termination-log
        volumeMounts: [{name: kube-api-access-x7k2p, mountPath: /var/run/secrets/kubernetes.io/serviceaccount,
                        readOnly: true}]""", """
        {priority: 0, preemptionPolicy: PreemptLowerPriority, serviceAccount: default, volumes: [
          {name: kube-api-access-x7k2p, projected: {defaultMode: 420, sources: [
            {serviceAccountToken: {expirationSeconds: 3607, path: token}},
            {downwardAPI: {items: [{path: namespace, fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}]}}]}}]}
        """, spec="""
        template:
          metadata:
            {creationTimestamp: null, generateName: trainer-, name: trainer-x, namespace: other, resourceVersion: "1",
             uid: 0c1ba1d4-8d1c-4b5e-9b5a-3c9f1f3f9d11, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet,
             name: gone, uid: 0c1ba1d4-8d1c-4b5e-9b5a-3c9f1f3f9d12, controller: true}]}
          status: {phase: Running}"""),
    Text("checkpoints-on-a-volume", "volumeMounts: [{name: saves, mountPath: /checkpoints}]",
         "volumes: [{name: saves, emptyDir: {}}]", spec="checkpoints: {path: /checkpoints}",
         told=("checkpoints.path",)),
    Text("path-up", "volumeMounts: [{name: data, mountPath: /x, subPath: ../up}]",
         "volumes: [{name: data, emptyDir: {}}]", told=("subPath",)),
    Text("init-with-many-gpus", pod=f"""
        initContainers: [{{name: prepare, image: '{HERE}prepare', command: ["true"],
                           resources: {{limits: {{nvidia.com/gpu: 9}}}}}}]""", told=("nvidia.com/gpu",)),
    Text("two-amounts-of-gpus", "resources: {requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 2}}",
         told=("nvidia.com/gpu",)),
    Text("newer-gpus", pod="""
        affinity:
          nodeAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              nodeSelectorTerms: [{matchExpressions: [{key: nvidia.com/gpu.memory, operator: Gt, values: ["80000"]}]}]
        """, told=("affinity.nodeAffinity",)),
    Text("large-annotation", spec=f"template: {{metadata: {{annotations: {{saved: {'x' * 200_000}}}}}}}"),
    Text("converted"),
)  # fmt: skip


def make(seed: int, number: int, minor: int) -> Made:
    """The job of this number, in a namespace of its own. `minor`: the version of Kubernetes is 1.`minor`."""
    text = TEXTS[number]
    namespace = f"m{seed % 10_000}-{number}"
    objects = tuple((path.format(namespace), _placed(body, namespace)) for path, body in text.objects)
    body = convert(yaml.safe_load(PYTORCHJOB)).manifest if text.name == "converted" else _build(text)
    has_to_train = not text.told if text.trains_from is None else minor >= text.trains_from
    causes = (body["spec"], *(one for _, one in objects))
    return Made(
        *(number, namespace, text.labels, objects, body, (text.name,), text.told, True, has_to_train, text.warned),
        causes=causes,
    )


def _build(text: Text) -> Object:
    trainer = {"name": "pytorch", "image": IMAGE, "command": ["torchrun", "train.py"], **_read(text.container)}
    if "args" in trainer and "command: [" not in text.container:
        del trainer["command"]
    pod = _read(text.pod)
    pod["containers"] = [trainer, *pod.get("containers", ())]
    metadata = {"generateName": f"{text.name}-"} if text.generated else {"name": text.name}
    head: Object = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata}
    if text.is_bare:
        return {**head, "spec": _read(text.spec)}
    spec: Object = {"replicas": 2, "elasticPolicy": {"minReplicas": 2, "maxReplicas": 4}, **_read(text.spec)}
    spec["template"] = {**spec.get("template", {}), "spec": pod}
    return {**head, "spec": spec}


def _read(text: str) -> Object:
    found: Object = yaml.safe_load(textwrap.dedent(text)) or {}
    return found


def _placed(raw: Any, namespace: str) -> Any:
    """The object with the name of the namespace where it is wanted: some objects are in none."""
    if isinstance(raw, Mapping):
        return {key: _placed(value, namespace) for key, value in raw.items()}
    return raw.format(namespace) if isinstance(raw, str) else raw
