{{/* The container that makes NATS' keys, certificates and configuration, and the one that keeps them. */}}

{{- define "talos-ccm.bootstrap" -}}
{{- $nats := .root.Values.nats -}}
{{- include "talos-ccm.container" .root }}
command: [python, -m, services.bootstrap]
args:
  - --namespace={{ .root.Release.Namespace }}
  - --prefix={{ include "talos-ccm.fullname" .root }}
  - --instance={{ .root.Release.Name }}
  - --out=/etc/nats-generated
  - --store-bytes={{ mul $nats.storeMebibytes 1048576 }}
  - --replicas={{ $nats.replicas }}
  - --cluster-domain={{ $nats.clusterDomain }}
  - --v={{ .root.Values.logVerbosityLevel }}
  - --logging-format={{ .root.Values.logFormat }}
  {{- range $nats.bootstrap.extraArgs }}
  - {{ . | quote }}
  {{- end }}
  {{- if .keep }}
  - --keep
  {{- end }}
env:
  - name: POD_NAME # the server's name: a replica that returns under another one is a stranger
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
resources:
  {{- toYaml $nats.bootstrap.resources | nindent 2 }}
volumeMounts:
  - name: generated
    mountPath: /etc/nats-generated
  - name: tmp
    mountPath: /tmp
  - name: api-access
    mountPath: /var/run/secrets/kubernetes.io/serviceaccount
    readOnly: true
{{- end }}

{{/* Secrets that bootstrap makes: the authority, and a key for each service that there is, installed or not,
     and for who only reads. */}}
{{- define "talos-ccm.natsSecrets" -}}
{{- $names := list -}}
{{- range concat (.Files.Get "files/rights.yaml" | fromYaml | keys) (list "reader" "ca") | sortAlpha -}}
{{- $names = append $names (printf "%s-nats-%s" (include "talos-ccm.fullname" $) .) -}}
{{- end -}}
{{- toYaml $names -}}
{{- end }}
