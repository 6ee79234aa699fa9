{{/* The name in labels. */}}
{{- define "elasticjob.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The beginning of all objects' names. 40 characters leave room for the endings. */}}
{{- define "elasticjob.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Cluster-wide objects of two releases must not meet. */}}
{{- define "elasticjob.clusterName" -}}
{{- if eq .Release.Namespace "elasticjob-system" -}}
{{- include "elasticjob.fullname" . -}}
{{- else -}}
{{- printf "%s-%s" .Release.Namespace (include "elasticjob.fullname" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "elasticjob.selectorLabels" -}}
app.kubernetes.io/name: {{ include "elasticjob.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "elasticjob.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "elasticjob.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: elasticjob
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What belongs to another component than the operator. Give: dict "context" $ "component" "name". */}}
{{- define "elasticjob.componentSelector" -}}
{{ include "elasticjob.selectorLabels" .context | replace "component: operator" (printf "component: %s" .component) }}
{{- end -}}

{{- define "elasticjob.componentMeta" -}}
{{ include "elasticjob.meta" . | replace "component: operator" (printf "component: %s" .component) }}
{{- end -}}

{{/* metadata.labels and metadata.annotations. Give: dict "context" $ "annotations" (dict). */}}
{{- define "elasticjob.meta" -}}
labels:
  {{- include "elasticjob.labels" .context | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (default (dict) .annotations) .context.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "elasticjob.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "elasticjob.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name the service account to use, or set serviceAccount.create" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* repository:tag or repository@digest. Give: dict "context" $ "image" .Values.images.x */}}
{{- define "elasticjob.image" -}}
{{- $registry := .context.Values.imageRegistry | trimSuffix "/" -}}
{{- $repository := ternary .image.repository (printf "%s/%s" $registry .image.repository) (empty $registry) -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .context.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "elasticjob.hubService" -}}
{{- printf "%s-hub" (include "elasticjob.fullname" .) -}}
{{- end -}}

{{- define "elasticjob.tlsSecret" -}}
{{- default (printf "%s-hub-tls" (include "elasticjob.fullname" .)) .Values.tls.secretName -}}
{{- end -}}

{{/* Where the certificate names no address, workers are told the name that it has. */}}
{{- define "elasticjob.hubUrl" -}}
{{- if .Values.hub.url -}}
{{- .Values.hub.url -}}
{{- else if eq .Values.tls.mode "certManager" -}}
{{- printf "wss://%s.%s.svc:%d" (include "elasticjob.hubService" .) .Release.Namespace (int .Values.hub.service.port) -}}
{{- end -}}
{{- end -}}

{{/* Takes the CEL rules out of a schema, in place: a server that does not know them refuses them. The operator checks all of them again. */}}
{{- define "elasticjob.dropRules" -}}
{{- if kindIs "map" . -}}
{{- $_ := unset . "x-kubernetes-validations" -}}
{{- range $_, $inner := . -}}{{- include "elasticjob.dropRules" $inner -}}{{- end -}}
{{- else if kindIs "slice" . -}}
{{- range . -}}{{- include "elasticjob.dropRules" . -}}{{- end -}}
{{- end -}}
{{- end -}}
