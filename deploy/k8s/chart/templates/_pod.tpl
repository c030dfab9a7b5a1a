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
{{- with .own.nodeSelector | default .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "talos-ccm.probes" -}}
livenessProbe:
  httpGet:
    path: /livez
    port: metrics
    scheme: HTTPS
  initialDelaySeconds: 20
  periodSeconds: 30
  timeoutSeconds: 5
readinessProbe:
  httpGet:
    path: /readyz
    port: metrics
    scheme: HTTPS
  periodSeconds: 5
  timeoutSeconds: 5
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
