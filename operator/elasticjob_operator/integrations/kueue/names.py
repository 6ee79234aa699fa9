"""Every name that Kueue gives to something."""

from __future__ import annotations

from typing import Final

from elasticjob_operator.api import names as ours

GROUP: Final = ours.KUEUE
VERSION: Final = "v1beta2"
API_VERSION: Final = f"{GROUP}/{VERSION}"
MULTIKUEUE: Final = ours.MULTIKUEUE

# Labels and annotations of a job.
LABEL_QUEUE: Final = ours.LABEL_QUEUE
LABEL_PRIORITY: Final = ours.LABEL_PRIORITY
ANNOTATION_GROWTH_PRIORITY: Final = ours.ANNOTATION_GROWTH_PRIORITY
PREBUILT: Final = ours.PREBUILT

# Of a Workload.
FINALIZER: Final = f"{GROUP}/resource-in-use"
LABEL_JOB_UID: Final = f"{GROUP}/job-uid"
ANNOTATION_FIRST: Final = "elasticjob.dev/first-index"  # ours: of the pods that it covers
ANNOTATION_TEMPLATE: Final = "elasticjob.dev/template-hash"
POD_SET: Final = "workers"

# Of a pod, or of a job's template.
LABEL_POD_SET: Final = f"{GROUP}/podset"
LABEL_CLUSTER_QUEUE: Final = f"{GROUP}/cluster-queue-name"
LABEL_LOCAL_QUEUE: Final = f"{GROUP}/local-queue-name"
LABEL_SENT: Final = f"{GROUP}/multikueue-worker-workload-pod"
ANNOTATION_WORKLOAD: Final = f"{GROUP}/workload"
ANNOTATION_OFFSET: Final = f"{GROUP}/pod-index-offset"
ANNOTATION_UNCONSTRAINED: Final = f"{GROUP}/podset-unconstrained-topology"
TOPOLOGY_GATE: Final = f"{GROUP}/topology"
TOPOLOGY_REQUESTS: Final = {  # annotation of the template → field of the request
    f"{GROUP}/podset-required-topology": "required",
    f"{GROUP}/podset-preferred-topology": "preferred",
    ANNOTATION_UNCONSTRAINED: "unconstrained",
    f"{GROUP}/podset-slice-required-topology": "podSetSliceRequiredTopology",
    f"{GROUP}/podset-slice-size": "podSetSliceSize",
}
