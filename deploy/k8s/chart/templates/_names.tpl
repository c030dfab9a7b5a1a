{{/* Names, labels, and the image. */}}

{{- define "talos-ccm.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Prefix of all names; the reference's rule, so that its release is upgraded in place. Room for
     "-nats-headless-...": 45 characters. */}}
{{- define "talos-ccm.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 45 | trimSuffix "-" }}
{{- else -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if contains $name .Release.Name -}}
{{ .Release.Name | trunc 45 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 45 | trimSuffix "-" }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "talos-ccm.accounts" -}}
{{ .Values.serviceAccount.name | default (include "talos-ccm.fullname" .) }}
{{- end }}

{{/* No version: labels of a selector can never change. */}}
{{- define "talos-ccm.selector" -}}
app.kubernetes.io/name: {{ include "talos-ccm.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "talos-ccm.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "talos-ccm.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* The reference's image holds none of our services, and its tags are none of ours: pods could never start. */}}
{{- define "talos-ccm.image" -}}
{{- $image := .Values.image -}}
{{- if regexMatch "(^|/)siderolabs/talos-cloud-controller-manager$" $image.repository -}}
{{- fail (printf "image.repository %s is the image of the reference controller, which has none of these services: set image.repository and image.tag to the image that you have pushed (docs/migrate.md)" $image.repository) -}}
{{- end -}}
{{- $default := eq $image.repository "ghcr.io/talos-ccm/talos-cloud-controller-manager" -}}
{{- $version := regexFind "^v?[0-9]+\\.[0-9]+\\.[0-9]+" $image.tag -}}
{{- if and $default $version (not $image.digest) -}}
{{- if ne (semver $version).Major (semver .Chart.AppVersion).Major -}}
{{- fail (printf "image.tag %s is no version of this controller (the chart is of %s) but probably of the reference: leave it out, or set image.repository to the image that you have pushed (docs/migrate.md)" $image.tag .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "talos-ccm.natsImage" -}}
{{- with .Values.nats.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
{{- end -}}
{{- end }}

{{/* What stands beside the values that there are: refused by no schema, as the reference's chart refuses nothing. */}}
{{- define "talos-ccm.unknownValues" -}}
{{- $known := list "replicaCount" "image" "imagePullSecrets" "nameOverride" "fullnameOverride" "extraArgs"
  "enabledControllers" "transformations" "logVerbosityLevel" "serviceAccount" "priorityClassName" "podAnnotations"
  "podSecurityContext" "securityContext" "service" "resources" "daemonSet" "updateStrategy" "nodeSelector"
  "tolerations" "affinity" "failoverSeconds" "config" "talos" "services" "nats" "podDisruptionBudget"
  "networkPolicy" "metrics" "logFormat" "otlpEndpoint" "extraEnv" "extraObjects" "global" -}}
{{- $unknown := keys .Values | sortAlpha -}}
{{- range $known -}}{{- $unknown = without $unknown . -}}{{- end -}}
{{- join ", " $unknown -}}
{{- end }}
