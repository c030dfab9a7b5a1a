{{/* Settings that all pods share. */}}

{{- define "talos-ccm.podCommon" -}}
priorityClassName: {{ .Values.priorityClassName | default "system-cluster-critical" }}
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A list of the service replaces the common list; lists are never merged. */}}
{{- define "talos-ccm.placement" -}}
tolerations:
  {{- with .own.tolerations | default .root.Values.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- range list "not-ready" "unreachable" }}
  - effect: NoExecute
    key: node.kubernetes.io/{{ . }}
    operator: Exists
    tolerationSeconds: {{ $.root.Values.failoverSeconds }}
  {{- end }}
  {{- range .accounts }}
  {{- if .routes }}
  # With a wrong network, every node has this taint, and the pod with the right one has to start.
  - effect: NoSchedule
    key: node.kubernetes.io/network-unavailable
    operator: Exists
  {{- end }}
  {{- end }}
{{- with .own.nodeSelector | default .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Labels of the pods, which no value may replace: selectors find the pods by them. */}}
{{- define "talos-ccm.podLabels" -}}
{{- with merge (deepCopy (.own.podLabels | default dict)) (.root.Values.podLabels | default dict) }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* Spreads the pods with `labels`; a constraint without a labelSelector would count no pod. */}}
{{- define "talos-ccm.spread" -}}
{{- with .own.topologySpreadConstraints | default .root.Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{ merge (deepCopy .) (ternary dict (dict "labelSelector" (dict "matchLabels" $.labels)) (hasKey . "labelSelector")) | toYaml | nindent 4 | trim }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "talos-ccm.updateStrategy" -}}
type: {{ .Values.updateStrategy.type }}
{{- if eq .Values.updateStrategy.type "RollingUpdate" }}
{{- with .Values.updateStrategy.rollingUpdate }}
rollingUpdate:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Resources of the process; without a request or limit of memory, it requests what it needs while 1000 nodes join. */}}
{{- define "talos-ccm.resources" -}}
{{- $resources := deepCopy (.own.resources | default .root.Values.resources | default dict) -}}
{{- if not (or ($resources.requests | default dict).memory ($resources.limits | default dict).memory) -}}
{{- $peak := get (.root.Files.Get "files/memory.yaml" | fromYaml) .process -}}
{{- $_ := set $resources "requests" (merge (dict "memory" $peak) ($resources.requests | default dict)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end }}

{{/* `host` is the address for a pod on the host network; "" means the address of the pod. The startup probe gives a
     process ten minutes on a busy node, and then a process that hangs is restarted within two. */}}
{{- define "talos-ccm.probes" -}}
startupProbe:
  {{- include "talos-ccm.probe" (dict "path" "/livez" "host" .host) | nindent 2 }}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 300
livenessProbe:
  {{- include "talos-ccm.probe" (dict "path" "/livez" "host" .host) | nindent 2 }}
  periodSeconds: 30
  timeoutSeconds: 5
{{- if .isReady }}
readinessProbe:
  {{- include "talos-ccm.probe" (dict "path" "/readyz" "host" .host) | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
{{- end }}

{{- define "talos-ccm.probe" -}}
httpGet:
  {{- with .host }}
  host: {{ . | quote }}
  {{- end }}
  path: {{ .path }}
  port: metrics
  scheme: HTTPS
{{- end }}

{{- define "talos-ccm.container" -}}
image: {{ include "talos-ccm.image" . | quote }}
imagePullPolicy: {{ (.Values.image | default dict).pullPolicy | default "IfNotPresent" }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end }}

{{- define "talos-ccm.configVolume" -}}
- name: cloud-config
  configMap:
    name: {{ include "talos-ccm.fullname" . }}
    defaultMode: 0440
- name: tmp
  emptyDir:
    medium: Memory
    sizeLimit: 16Mi
{{- end }}

{{- define "talos-ccm.talosVolume" -}}
- name: talos-secrets
  secret:
    secretName: {{ include "talos-ccm.accounts" . }}-talos-secrets
    defaultMode: 0440
{{- end }}

{{/* The credentials of these entries of `clouds`. Without its Secret, only the account waits, and /readyz names it. No
     account shares the name of another volume. */}}
{{- define "talos-ccm.cloudVolumes" -}}
{{- range . }}
- name: credential-{{ .account }}
  secret:
    secretName: {{ .secretRef.name }}
    items:
      - key: {{ .secretRef.key | default "token" }}
        path: credential
    defaultMode: 0440
    optional: true
{{- end }}
{{- end }}

{{- define "talos-ccm.cloudMounts" -}}
{{- range . }}
- name: credential-{{ .account }}
  mountPath: /etc/clouds/{{ .account }}
  readOnly: true
{{- end }}
{{- end }}

{{- define "talos-ccm.configMounts" -}}
- name: cloud-config
  mountPath: /etc/talos
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- end }}

{{- define "talos-ccm.talosMount" -}}
- name: talos-secrets
  mountPath: /var/run/secrets/talos.dev
  readOnly: true
{{- end }}
