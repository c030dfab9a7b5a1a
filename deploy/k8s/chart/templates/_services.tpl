{{/* Which services are installed, and their flags. */}}

{{/* Whether enabledControllers enables each controller, by its proper name. The last entry wins. JSON. */}}
{{- define "talos-ccm.wanted" -}}
{{- $aliases := dict
  "cloud-node-controller" "cloud-node"
  "node-csr-approval" "certificatesigningrequest-approving-controller"
  "nodeipam" "node-ipam-controller"
  "cloud-node-lifecycle" "cloud-node-lifecycle-controller" -}}
{{- $wanted := dict -}}
{{- range .Values.enabledControllers -}}
{{- $bare := trimPrefix "-" . -}}
{{- $_ := set $wanted (get $aliases $bare | default $bare) (not (hasPrefix "-" .)) -}}
{{- end -}}
{{- $all := get $wanted "*" | default false -}}
{{- range list "cloud-node" "certificatesigningrequest-approving-controller" -}}
{{- if not (hasKey $wanted .) -}}{{- $_ := set $wanted . $all -}}{{- end -}}
{{- end -}}
{{- if not (hasKey $wanted "node-ipam-controller") -}}
{{- $told := false -}}
{{- range concat (.Values.extraArgs | default list) (.Values.services.ipam.extraArgs | default list) -}}
{{- if regexMatch "^--?allocate[-_]node[-_]cidrs(=.*)?$" . -}}
{{- $told = not (regexMatch "=(?i:0|f|false)$" .) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $wanted "node-ipam-controller" $told -}}
{{- end -}}
{{- toJson $wanted -}}
{{- end }}

{{/* "true" if no machine is queried, else "". */}}
{{- define "talos-ccm.withoutTalos" -}}
{{- $without := not .Values.talos.enabled -}}
{{- range concat (.Values.extraArgs | default list) (.Values.services.metadata.extraArgs | default list) -}}
{{- if regexMatch "^--?without[-_]talos(=.*)?$" . -}}{{- $without = not (regexMatch "=(?i:0|f|false)$" .) -}}{{- end -}}
{{- end -}}
{{- ternary "true" "" $without -}}
{{- end }}

{{/* Not empty if the process of csr has a flag with the Service networks; csr needs it if no machine is queried. */}}
{{- define "talos-ccm.serviceNetworks" -}}
{{- $args := concat (.Values.extraArgs | default list) (.Values.services.csr.extraArgs | default list) -}}
{{- if .Values.daemonSet.enabled -}}
{{- range list "watcher" "metadata" -}}
{{- $args = concat $args ((get $.Values.services .).extraArgs | default list) -}}
{{- end -}}
{{- end -}}
{{- range $args -}}
{{- if regexMatch "^--?service[-_]cluster[-_]ip[-_]range(=.+)?$" . -}}true{{- end -}}
{{- end -}}
{{- end }}

{{/* Differences of enabledControllers from the reference controller, one line each; "" if there are none. */}}
{{- define "talos-ccm.otherThanInReference" -}}
{{- $wanted := include "talos-ccm.wanted" . | fromJson -}}
{{- $named := list -}}
{{- range .Values.enabledControllers -}}{{- $named = append $named (trimPrefix "-" .) -}}{{- end -}}
{{- $csr := or (has "node-csr-approval" $named) (has "certificatesigningrequest-approving-controller" $named) -}}
{{- $lifecycle := or (has "cloud-node-lifecycle" $named) (has "cloud-node-lifecycle-controller" $named) -}}
{{- $lines := list -}}
{{- if and (get $wanted "*") (not (and $csr $lifecycle)) -}}
{{- $lines = append $lines "- enabledControllers: `*` selects cloud-node and node-csr-approval; in the reference it selects cloud-node and cloud-node-lifecycle." -}}
{{- end -}}
{{- if get $wanted "cloud-node-lifecycle-controller" -}}
{{- $service := ternary "watcher" "lifecycle" .Values.daemonSet.enabled -}}
{{- $spot := false -}}
{{- range include "talos-ccm.extraArgs" (dict "root" . "service" $service) | fromJsonArray -}}
{{- if regexMatch "^--?delete[-_]preempted[-_]gcp[-_]spot(=.*)?$" . -}}{{- $spot = true -}}{{- end -}}
{{- end -}}
{{- $lines = append $lines "- cloud-node-lifecycle deletes a Node only if its machine is proven to be gone." -}}
{{- if not $spot -}}
{{- $lines = append $lines "- Nodes of preempted GCP spot machines are kept: --delete-preempted-gcp-spot in extraArgs deletes them." -}}
{{- end -}}
{{- end -}}
{{- join "\n" $lines -}}
{{- end }}

{{/* Names of the installed services, in the order of the message flow. JSON: {"names": [...]}. */}}
{{- define "talos-ccm.services" -}}
{{- if .Values.useDaemonSet -}}
{{- fail "useDaemonSet is a value of old charts of the reference controller: use daemonSet.enabled instead" -}}
{{- end -}}
{{- $wanted := include "talos-ccm.wanted" . | fromJson -}}
{{- $names := list "watcher" "metadata" -}}
{{- $nodes := list -}}
{{- if get $wanted "cloud-node" -}}{{- $nodes = append $nodes "labeler" -}}{{- end -}}
{{- $csr := get $wanted "certificatesigningrequest-approving-controller" -}}
{{- if get $wanted "node-ipam-controller" -}}{{- $nodes = append $nodes "ipam" -}}{{- end -}}
{{- if get $wanted "cloud-node-lifecycle-controller" -}}{{- $nodes = append $nodes "lifecycle" -}}{{- end -}}
{{- if not (or $csr $nodes) -}}
{{- fail "enabledControllers leaves nothing to run: name cloud-node, node-csr-approval, node-ipam-controller or cloud-node-lifecycle" -}}
{{- end -}}
{{- if and (not .Values.talos.enabled) $nodes -}}
{{- fail (printf "talos.enabled is false, and %s cannot work without the Talos API: enabledControllers may contain only node-csr-approval" (join ", " $nodes)) -}}
{{- end -}}
{{- if and (has "ipam" $nodes) (include "talos-ccm.withoutTalos" .) -}}
{{- fail "--without-talos is set, and ipam cannot work without the Talos API: it would never allocate" -}}
{{- end -}}
{{- if and $csr (include "talos-ccm.withoutTalos" .) (not (include "talos-ccm.serviceNetworks" .)) -}}
{{- fail "talos.enabled is false (--without-talos), so no service queries a control plane for the Service networks: add the --service-cluster-ip-range of kube-apiserver to services.csr.extraArgs" -}}
{{- end -}}
{{- toJson (dict "names" (concat $names $nodes (ternary (list "csr") list $csr))) -}}
{{- end }}

{{- define "talos-ccm.port" -}}
{{- if eq .service "watcher" -}}
{{ .root.Values.service.containerPort }}
{{- else -}}
{{ get (dict "metadata" 10459 "labeler" 10460 "csr" 10461 "ipam" 10462 "lifecycle" 10463) .service }}
{{- end -}}
{{- end }}

{{/* Flags of every process, for any service. */}}
{{- define "talos-ccm.commonArgs" -}}
- --v={{ .Values.logVerbosityLevel }}
- --logging-format={{ .Values.logFormat }}
- --controllers={{ join "," .Values.enabledControllers }}
- --cloud-config=/etc/talos/ccm-config.yaml
{{- with .Values.otlpEndpoint }}
- --otlp-endpoint={{ . }}
{{- end }}
{{- end }}

{{- define "talos-ccm.natsURL" -}}
{{- if .Values.nats.enabled -}}
tls://{{ include "talos-ccm.fullname" . }}-nats.{{ .Release.Namespace }}.svc:4222
{{- else -}}
{{ required "nats.enabled is false: set nats.external.url to the URL of your NATS servers" .Values.nats.external.url }}
{{- end -}}
{{- end }}

{{/* URL of NATS, and the credentials of the service. */}}
{{- define "talos-ccm.natsArgs" -}}
- --nats-url={{ include "talos-ccm.natsURL" . }}
{{- if include "talos-ccm.seedPrefix" . }}
- --nats-nkey-file=/etc/nats/seed/seed.nk
{{- end }}
{{- if include "talos-ccm.natsAuthority" . }}
- --nats-ca-file=/etc/nats/ca/ca.crt
{{- end }}
{{- end }}

{{/* The same for `talos-ccm` in the pod of the watcher, with a read-only key. Flags override these variables. */}}
{{- define "talos-ccm.readerEnv" -}}
- name: NATS_URL
  value: {{ include "talos-ccm.natsURL" . | quote }}
{{- if include "talos-ccm.seedPrefix" . }}
- name: NATS_NKEY_FILE
  value: /etc/nats/reader/seed.nk
{{- end }}
{{- if include "talos-ccm.natsAuthority" . }}
- name: NATS_CA_FILE
  value: /etc/nats/ca/ca.crt
{{- end }}
{{- end }}

{{- define "talos-ccm.seedPrefix" -}}
{{- if .Values.nats.enabled -}}
{{ include "talos-ccm.fullname" . }}-nats
{{- else -}}
{{ .Values.nats.external.seedSecretPrefix }}
{{- end -}}
{{- end }}

{{- define "talos-ccm.natsAuthority" -}}
{{- if .Values.nats.enabled -}}
{{ include "talos-ccm.fullname" . }}-nats-ca
{{- else -}}
{{ .Values.nats.external.caConfigMap }}
{{- end -}}
{{- end }}

{{/* Extra flags of the process that runs a service: the common flags, and those of each service in the process. JSON. */}}
{{- define "talos-ccm.extraArgs" -}}
{{- $all := .root.Values.extraArgs | default list -}}
{{- $names := ternary (include "talos-ccm.services" .root | fromJson).names (list .service) .root.Values.daemonSet.enabled -}}
{{- range $names -}}
{{- $all = concat $all ((get $.root.Values.services . | default dict).extraArgs | default list) -}}
{{- end -}}
{{- toJson $all -}}
{{- end }}

{{/* Value of a flag in these extra flags, as --flag=value or --flag value. The last one wins; "" if it is not set. */}}
{{- define "talos-ccm.flag" -}}
{{- $named := printf "^--?%s" (replace "-" "[-_]" .flag) -}}
{{- $value := "" -}}
{{- $next := false -}}
{{- range include "talos-ccm.extraArgs" . | fromJsonArray -}}
{{- if $next -}}{{- $value = . -}}
{{- else if regexMatch (printf "%s=" $named) . -}}{{- $value = regexReplaceAll (printf "%s=" $named) . "" -}}
{{- end -}}
{{- $next = regexMatch (printf "%s$" $named) . -}}
{{- end -}}
{{- $value -}}
{{- end }}
