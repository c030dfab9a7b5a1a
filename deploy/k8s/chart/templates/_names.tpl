{{/* Names, labels, and the image. */}}

{{- define "talos-ccm.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Prefix of all names. It follows the rule of the reference controller's chart, so that its release is upgraded in
     place. 45 characters leave room for "-nats-headless-...". */}}
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

{{/* Without the version, because labels of a selector are immutable. */}}
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

{{/* Without a default: a stranger could publish an image under its name, and run in each cluster without this value. */}}
{{- define "talos-ccm.repository" -}}
{{ required "image.repository is not set, and no image of this controller is published: build the image, push it to your registry, and set image.repository to it (docs/install.md)" ((.Values.image | default dict).repository | default "" | toString) }}
{{- end }}

{{- define "talos-ccm.tag" -}}
{{ (.Values.image | default dict).tag | default "" | toString }}
{{- end }}

{{/* "true" for a tag such as v1.9.0 whose major version is not that of this chart; "" for any other tag. */}}
{{- define "talos-ccm.otherMajor" -}}
{{- $tag := include "talos-ccm.tag" . -}}
{{- if regexMatch "^(v[0-9]+([.-]|$)|[0-9]+\\.[0-9])" $tag -}}
{{- $major := regexFind "[0-9]+" $tag -}}
{{- if ne $major (regexFind "[0-9]+" .Chart.AppVersion) -}}true{{- end -}}
{{- end -}}
{{- end }}

{{/* The image of the reference controller has none of these services, so pods could not start. A digest is always
     accepted: it names one exact image, and values of the reference controller have none. */}}
{{- define "talos-ccm.image" -}}
{{- $repository := include "talos-ccm.repository" . -}}
{{- $tag := include "talos-ccm.tag" . -}}
{{- $digest := (.Values.image | default dict).digest | default "" -}}
{{- if $digest -}}
{{ $repository }}@{{ $digest }}
{{- else -}}
{{- if regexMatch "(^|/)siderolabs/talos-cloud-controller-manager([:@].*)?$" $repository -}}
{{- fail (printf "image.repository %s is the image of the reference controller, which has none of these services: set image.repository and image.tag to the image that you have pushed; if you have pushed it under this name, set image.digest (docs/migrate.md)" $repository) -}}
{{- end -}}
{{ $repository }}:{{ $tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "talos-ccm.natsImage" -}}
{{- with .Values.nats.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
{{- end -}}
{{- end }}

{{/* Unknown values at the top level. The schema accepts them, because the reference controller's chart accepts them. */}}
{{- define "talos-ccm.unknownValues" -}}
{{- $known := list "replicaCount" "image" "imagePullSecrets" "nameOverride" "fullnameOverride" "extraArgs"
  "enabledControllers" "transformations" "logVerbosityLevel" "serviceAccount" "priorityClassName" "podAnnotations"
  "podLabels" "topologySpreadConstraints" "podSecurityContext" "securityContext" "service" "resources" "daemonSet" "updateStrategy" "nodeSelector"
  "tolerations" "affinity" "failoverSeconds" "config" "talos" "clouds" "services" "nats" "podDisruptionBudget"
  "networkPolicy" "metrics" "logFormat" "otlpEndpoint" "extraEnv" "extraObjects" "global" "console" -}}
{{- $unknown := keys .Values | sortAlpha -}}
{{- range $known -}}{{- $unknown = without $unknown . -}}{{- end -}}
{{- join ", " $unknown -}}
{{- end }}
