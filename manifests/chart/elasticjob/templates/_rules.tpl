{{/*
Every verb that the operator uses on jobs and on what it makes for them, and no other. tests/manifests/test_rbac.py runs the
operator under these rules and fails when one is missing or unused.
*/}}
{{- define "elasticjob.workRules" -}}
- apiGroups: [elasticjob.dev]
  resources: [elasticjobs]
  # patch: the number of replicas, where the user left it out. delete: ttlSecondsAfterFinished.
  verbs: [get, list, watch, patch, delete]
- apiGroups: [elasticjob.dev]
  resources: [elasticjobs/status]
  verbs: [patch]
# Read once, when a job starts that names one.
- apiGroups: [elasticjob.dev]
  resources: [elasticjobtemplates]
  verbs: [get]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
# CPU and memory of pods that run. Older API servers than 1.33 do not serve it.
- apiGroups: [""]
  resources: [pods/resize]
  verbs: [patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
{{- if .Values.rbac.autoscaling }}
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
{{- if .Values.rbac.gangScheduling.kubernetes }}
- apiGroups: [scheduling.k8s.io]
  resources: [podgroups]
  verbs: [get, create, patch]
{{- end }}
{{- if .Values.rbac.gangScheduling.volcano }}
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [get, create, patch]
{{- end }}
{{- if .Values.rbac.gangScheduling.schedulerPlugins }}
- apiGroups: [scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, create, patch]
{{- end }}
{{- if .Values.rbac.gangScheduling.kai }}
- apiGroups: [scheduling.run.ai]
  resources: [podgroups]
  verbs: [get, create, patch]
{{- end }}
{{- if .Values.integrations.kueue }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}
{{- end -}}

{{/* What belongs to no namespace. */}}
{{- define "elasticjob.clusterRules" -}}
# Whose token is this? Asked for every agent that connects.
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
{{- if or (empty .Values.watchNamespaces) .Values.rbac.nodes }}
# Drains, taints and lost nodes.
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch{{ if .Values.operator.taintFaultyNodes }}, get, patch{{ end }}]
{{- if .Values.operator.reportFaultyNodes }}
- apiGroups: [""]
  resources: [nodes/status]
  verbs: [patch]
{{- end }}
{{- end }}
{{- if .Values.integrations.kueue }}
# Where the pods of a queue's job may run, and which number its class stands for.
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors]
  verbs: [list, watch]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloadpriorityclasses]
  verbs: [get]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [get]
{{- end }}
{{- end -}}

{{/* What it needs in its own namespace, whichever it looks after. */}}
{{- define "elasticjob.ownRules" -}}
# A create cannot be bound to a name.
{{- if .Values.leaderElection.enabled }}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "elasticjob.fullname" . }}]
  verbs: [get, update]
{{- end }}
{{- if and .Values.watchNamespaces (not (has .Release.Namespace .Values.watchNamespaces)) }}
# The templates of all namespaces.
- apiGroups: [elasticjob.dev]
  resources: [elasticjobtemplates]
  verbs: [get]
{{- end }}
{{- if .Values.hub.service.leaderOnly }}
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [create]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  resourceNames: [{{ include "elasticjob.hubService" . }}]
  verbs: [get, update]
{{- end }}
{{- if eq .Values.tls.mode "selfManaged" }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "elasticjob.tlsSecret" . }}]
  verbs: [get, update]
{{- else if ne .Values.tls.mode "disabled" }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "elasticjob.tlsSecret" . }}]
  verbs: [get]
{{- end }}
{{- if and .Values.watchNamespaces (not (has .Release.Namespace .Values.watchNamespaces)) }}
- apiGroups: [""]
  resources: [services]
  resourceNames: [{{ include "elasticjob.hubService" . }}]
  verbs: [get]
{{- end }}
{{- end -}}
