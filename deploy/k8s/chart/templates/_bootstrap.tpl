{{/* The containers that create (bootstrap) and renew (keeper) the keys, certificates and configuration of NATS. */}}

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
  {{- range .root.Values.clouds }}
  - --cloud-accounts={{ .account }}
  {{- end }}
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
  - name: POD_NAME # name of the server; a replica must keep its name to rejoin the cluster
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

{{/* Names of the Secrets that the bootstrap creates: the authority, a key for each service (also for services that are
     not installed), for each cloud account, and a read-only key. */}}
{{- define "talos-ccm.natsSecrets" -}}
{{- $names := list -}}
{{- $users := concat (without (.Files.Get "files/rights.yaml" | fromYaml | keys) "cloud") (list "reader" "ca") -}}
{{- range .Values.clouds -}}{{- $users = append $users (printf "cloud-%s" .account) -}}{{- end -}}
{{- range sortAlpha $users -}}
{{- $names = append $names (printf "%s-nats-%s" (include "talos-ccm.fullname" $) .) -}}
{{- end -}}
{{- toYaml $names -}}
{{- end }}

{{/* State of the policy that restricts the account of the bootstrap: "installed"; "off" if the values disable it;
     "missing" if the cluster does not serve the kind; "" without a bootstrap. A cluster lists its kinds, including
     v1/Pod. A render without a cluster has no such list, so the Kubernetes version decides. */}}
{{- define "talos-ccm.bootstrapPolicy" -}}
{{- $kind := "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" -}}
{{- $versions := .Capabilities.APIVersions -}}
{{- $served := $versions.Has $kind -}}
{{- if not ($versions.Has "v1/Pod") -}}
{{- $served = or $served (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .Values.nats.enabled (not .Values.daemonSet.enabled) -}}
{{- $wanted := toString .Values.nats.bootstrap.admissionPolicy -}}
{{- if eq $wanted "false" -}}off
{{- else if $served -}}installed
{{- else if eq $wanted "true" -}}
{{- fail (printf "nats.bootstrap.admissionPolicy is true, and this cluster (%s) does not serve %s: set it to auto" .Capabilities.KubeVersion.Version $kind) -}}
{{- else -}}missing
{{- end -}}
{{- end -}}
{{- end }}
