{{/* Name of all objects of this release. */}}
{{- define "redlock.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select the operator's pods. They never change, because a Deployment's selector is immutable. */}}
{{- define "redlock.selector" -}}
app.kubernetes.io/name: redlock-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "redlock.labels" -}}
{{ include "redlock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Labels of the hook after the uninstallation. Not those that select the operator's pods. */}}
{{- define "redlock.cleanup.labels" -}}
app.kubernetes.io/name: redlock-cleanup
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Annotations of what that hook needs, by its weight. Removed with the last of it, however that ends. */}}
{{- define "redlock.cleanup.hook" -}}
helm.sh/hook: post-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- end -}}

{{- define "redlock.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "redlock.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "redlock.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
