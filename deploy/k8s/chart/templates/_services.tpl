{{/* Which services are installed, and their flags. */}}

{{/* One row of files/services.yaml, which is generated from the service table, by the name of the service. The service
     cloud-<account> has the row of cloud, and in `accounts` the account's entry of `clouds`. JSON. */}}
{{- define "talos-ccm.row" -}}
{{- range $row := .root.Files.Get "files/services.yaml" | fromYamlArray -}}
{{- if eq .name $.service -}}{{- toJson . -}}{{- end -}}
{{- range ternary $.root.Values.clouds list .perAccount -}}
{{- if eq $.service (printf "cloud-%s" .account) -}}{{- toJson (merge (dict "accounts" (list .)) $row) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The key in `services` of the service: all accounts share one. */}}
{{- define "talos-ccm.key" -}}
{{ ternary "cloud" . (hasPrefix "cloud-" .) }}
{{- end }}

{{/* Whether enabledControllers enables each controller, by its proper name. The last entry wins. JSON. */}}
{{- define "talos-ccm.wanted" -}}
{{- $rows := .Files.Get "files/services.yaml" | fromYamlArray -}}
{{- $aliases := dict -}}
{{- range $row := $rows -}}
{{- range .aliases -}}{{- $_ := set $aliases . $row.controller -}}{{- end -}}
{{- range $controller := .controllersOfAccounts -}}
{{- range .aliases -}}{{- $_ := set $aliases . $controller.name -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $wanted := dict -}}
{{- range .Values.enabledControllers -}}
{{- $bare := trimPrefix "-" . -}}
{{- $_ := set $wanted (get $aliases $bare | default $bare) (not (hasPrefix "-" .)) -}}
{{- end -}}
{{- $all := get $wanted "*" | default false -}}
{{- range $row := $rows -}}
{{- if and .controller (not (hasKey $wanted .controller)) -}}
{{- $told := and .inWildcard $all -}}
{{- if .flag -}}
{{- $named := printf "^--?%s" (replace "-" "[-_]" .flag) -}}
{{- range concat ($.Values.extraArgs | default list) ((get $.Values.services .name | default dict).extraArgs | default list) -}}
{{- if regexMatch (printf "%s(=.*)?$" $named) . -}}
{{- $told = not (regexMatch "=(?i:0|f|false)$" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set $wanted .controller $told -}}
{{- end -}}
{{- range $value, $controller := .controllersOfAccounts -}}
{{- $has := include "talos-ccm.hasAccount" (dict "accounts" $.Values.clouds "value" $value) -}}
{{- $_ := set $wanted .name (and (get $wanted .name) $has true) -}}
{{- end -}}
{{- end -}}
{{- toJson $wanted -}}
{{- end }}

{{/* "true" if one of these entries of `clouds` has this value, such as loadBalancers, else "". */}}
{{- define "talos-ccm.hasAccount" -}}
{{- $has := false -}}
{{- range .accounts -}}{{- if get . $.value -}}{{- $has = true -}}{{- end -}}{{- end -}}
{{- ternary "true" "" $has -}}
{{- end }}

{{/* The controllers that the process of a service runs for its accounts, by name. JSON. */}}
{{- define "talos-ccm.accountControllers" -}}
{{- $row := include "talos-ccm.row" . | fromJson -}}
{{- $wanted := include "talos-ccm.wanted" .root | fromJson -}}
{{- $found := dict -}}
{{- range $value, $controller := $row.controllersOfAccounts -}}
{{- $has := include "talos-ccm.hasAccount" (dict "accounts" $row.accounts "value" $value) -}}
{{- if and $has (get $wanted .name) -}}{{- $_ := set $found .name true -}}{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* "true" if the service uses the API of Kubernetes, else "". */}}
{{- define "talos-ccm.usesKubernetes" -}}
{{- $row := include "talos-ccm.row" . | fromJson -}}
{{- $isExposed := and (eq .service "console") (include "talos-ccm.isExposed" .root) -}}
{{- ternary "true" "" (or $row.kubernetesToken (gt (len (include "talos-ccm.accountControllers" . | fromJson)) 0) (eq (toString $isExposed) "true")) -}}
{{- end }}

{{/* "true" if no machine is queried, else "". */}}
{{- define "talos-ccm.withoutTalos" -}}
{{- $without := not .Values.talos.enabled -}}
{{- range concat (.Values.extraArgs | default list) ((get .Values.services "metadata" | default dict).extraArgs | default list) -}}
{{- if regexMatch "^--?without[-_]talos(=.*)?$" . -}}{{- $without = not (regexMatch "=(?i:0|f|false)$" .) -}}{{- end -}}
{{- end -}}
{{- ternary "true" "" $without -}}
{{- end }}

{{/* Not empty if the process of csr has a flag with the Service networks; csr needs it if no machine is queried. */}}
{{- define "talos-ccm.serviceNetworks" -}}
{{- $args := concat (.Values.extraArgs | default list) ((get .Values.services "csr" | default dict).extraArgs | default list) -}}
{{- if .Values.daemonSet.enabled -}}
{{- range list "watcher" "metadata" -}}
{{- $args = concat $args ((get $.Values.services . | default dict).extraArgs | default list) -}}
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
{{- $lines = append $lines "- cloud-node-lifecycle deletes a Node only if its machine is proven to be replaced." -}}
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
{{- $names := list -}}
{{- $nodes := list -}}
{{- $others := list -}}
{{- $choices := list -}}
{{- $choicesWithoutTalos := list -}}
{{- $accounts := list -}}
{{- $secrets := list -}}
{{- $classes := list -}}
{{- range .Values.clouds -}}
{{- $secret := printf "%s, key %s" .secretRef.name (.secretRef.key | default "token") -}}
{{- if has (printf "cloud-%s" .account) $accounts -}}
{{- fail (printf "clouds: the account %s is there twice; each account needs a name of its own" .account) -}}
{{- end -}}
{{- if has $secret $secrets -}}
{{- fail (printf "clouds: two accounts have the credential of Secret %s; each account needs a credential of its own" $secret) -}}
{{- end -}}
{{- if and .metadata (not (has .provider (list "hcloud" "openstack"))) -}}
{{- fail (printf "clouds: the account %s supplies no metadata: %s is not hcloud or openstack" .account .provider) -}}
{{- end -}}
{{- if and .network (not .metadata) -}}
{{- fail (printf "clouds: the network of account %s has no effect without metadata: true" .account) -}}
{{- end -}}
{{- with .loadBalancers -}}
{{- if not (get $wanted "service-lb-controller") -}}
{{- fail "clouds: loadBalancers has no effect: add service-lb-controller to enabledControllers" -}}
{{- end -}}
{{- $classes = concat $classes (compact (list .class (ternary "default" "" (default false .default)))) -}}
{{- if ne (len $classes) (len (uniq $classes)) -}}
{{- fail "clouds: two accounts have the load balancers of one class, or are the default" -}}
{{- end -}}
{{- end -}}
{{- if and .routes (not (has .provider (list "hcloud" "openstack"))) -}}
{{- fail (printf "clouds: the account %s has no routes: %s is not hcloud or openstack" .account .provider) -}}
{{- end -}}
{{- with .routes -}}
{{- if not (get $wanted "node-route-controller") -}}
{{- fail "clouds: routes has no effect: add node-route-controller to enabledControllers" -}}
{{- end -}}
{{- end -}}
{{- $accounts = append $accounts (printf "cloud-%s" .account) -}}
{{- $secrets = append $secrets $secret -}}
{{- end -}}
{{- range .Files.Get "files/services.yaml" | fromYamlArray -}}
{{- if .perAccount -}}
{{- else if not .controller -}}
{{- if or (not .flag) (get $.Values .flag | default dict).enabled -}}{{- $names = append $names .name -}}{{- end -}}
{{- else -}}
{{- $choices = append $choices .displayName -}}
{{- if not .needsTalos -}}{{- $choicesWithoutTalos = append $choicesWithoutTalos .displayName -}}{{- end -}}
{{- if get $wanted .controller -}}
{{- if .needsTalos -}}{{- $nodes = append $nodes .name -}}{{- else -}}{{- $others = append $others .name -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not (or $others $nodes) -}}
{{- fail (printf "enabledControllers leaves nothing to run: name %s or %s" (join ", " (initial $choices)) (last $choices)) -}}
{{- end -}}
{{- if and (not .Values.talos.enabled) $nodes -}}
{{- fail (printf "talos.enabled is false, and %s cannot work without the Talos API: enabledControllers may contain only %s" (join ", " $nodes) (join ", " $choicesWithoutTalos)) -}}
{{- end -}}
{{- if and (has "ipam" $nodes) (include "talos-ccm.withoutTalos" .) -}}
{{- fail "--without-talos is set, and ipam cannot work without the Talos API: it would never allocate" -}}
{{- end -}}
{{- if and (has "csr" $others) (include "talos-ccm.withoutTalos" .) (not (include "talos-ccm.serviceNetworks" .)) -}}
{{- fail "talos.enabled is false (--without-talos), so no service queries a control plane for the Service networks: add the --service-cluster-ip-range of kube-apiserver to services.csr.extraArgs" -}}
{{- end -}}
{{- toJson (dict "names" (concat $names $nodes $accounts $others)) -}}
{{- end }}

{{- define "talos-ccm.port" -}}
{{- if eq .service "watcher" -}}
{{ .root.Values.service.containerPort }}
{{- else -}}
{{ (include "talos-ccm.row" . | fromJson).port }}
{{- end -}}
{{- end }}

{{/* Address of health and metrics with daemonSet.enabled. */}}
{{- define "talos-ccm.bindAddress" -}}
{{ include "talos-ccm.flag" (dict "root" . "flag" "bind-address") | default .Values.daemonSet.bindAddress }}
{{- end }}

{{/* "true" if only the node itself reaches health and metrics, else "". */}}
{{- define "talos-ccm.isLoopback" -}}
{{- if and .Values.daemonSet.enabled (regexMatch "^(127\\.|::1$|localhost$)" (include "talos-ccm.bindAddress" .)) -}}true{{- end -}}
{{- end }}

{{- define "talos-ccm.replicas" -}}
{{- if (include "talos-ccm.row" . | fromJson).singleReplica -}}
1
{{- else -}}
{{ (get .root.Values.services .service | default dict).replicas | default .root.Values.replicaCount | int }}
{{- end -}}
{{- end }}

{{/* Flags of every process, for any service. */}}
{{- define "talos-ccm.commonArgs" -}}
- --v={{ .Values.logVerbosityLevel }}
- --logging-format={{ .Values.logFormat }}
{{- $controllers := .Values.enabledControllers }}
{{- range (include "talos-ccm.row" (dict "root" . "service" "cloud") | fromJson).controllersOfAccounts }}
{{- if not (get (include "talos-ccm.wanted" $ | fromJson) .name) }}
{{- $controllers = without $controllers .name (first .aliases) }}
{{- end }}
{{- end }}
- --controllers={{ join "," $controllers }}
- --cloud-config=/etc/talos/ccm-config.yaml
{{- with .Values.otlpEndpoint }}
- --otlp-endpoint={{ . }}
{{- end }}
{{- end }}

{{/* Flags of the process of these entries of `clouds`. */}}
{{- define "talos-ccm.cloudArgs" -}}
{{- range . }}
- --cloud-account={{ compact (list .provider .account .anchor) | join "/" }}
{{- $account := .account }}
{{- with .loadBalancers }}
{{- with .class }}
- --load-balancer-class={{ $account }}={{ . }}
{{- end }}
{{- if .default }}
- --load-balancer-default-account={{ $account }}
{{- end }}
{{- range $name, $value := .options }}
- {{ printf "--load-balancer-option=%s/%s=%v" $account $name $value | quote }}
{{- end }}
{{- end }}
{{- with .routes }}
- --route-network={{ $account }}{{ with .network }}={{ . }}{{ end }}
{{- range .podNetworks }}
- {{ printf "--route-pod-network=%s=%s" $account . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- with . }}
- --cloud-credential-file=/etc/clouds/{account}/credential
{{- end }}
{{- include "talos-ccm.metadataArgs" . }}
{{- end }}

{{/* "true" if the live console is reached through a Service, else "". */}}
{{- define "talos-ccm.isExposed" -}}
{{- $console := .Values.console | default dict -}}
{{- $exposed := $console.exposed | default dict -}}
{{- if and $console.enabled $exposed.enabled -}}
{{- if .Values.daemonSet.enabled -}}
{{- fail "console.exposed: with daemonSet.enabled only the console of the leader has data, so no Service can select it; use kubectl port-forward" -}}
{{- end -}}
{{- if not (and $exposed.tlsSecretName $exposed.hosts) -}}
{{- fail "console.exposed: set tlsSecretName to a Secret of type kubernetes.io/tls, and hosts to the names in its certificate" -}}
{{- end -}}
true
{{- end -}}
{{- end }}

{{/* Flags of the process that serves the live console. */}}
{{- define "talos-ccm.consoleArgs" -}}
- --console-namespace={{ .Release.Namespace }}
{{- if include "talos-ccm.isExposed" . }}
- --console-exposed
- --console-address=0.0.0.0
- --console-tls-cert-file=/etc/console/tls/tls.crt
- --console-tls-key-file=/etc/console/tls/tls.key
{{- range .Values.console.exposed.hosts }}
- {{ printf "--console-allowed-host=%s" . | quote }}
{{- end }}
{{- end }}
{{- with .Values.console.traceUrlTemplate }}
- {{ printf "--trace-url-template=%s" . | quote }}
{{- end }}
{{- end }}

{{/* Flags for the metadata of these entries of `clouds`, also of a process that has no account. */}}
{{- define "talos-ccm.metadataArgs" -}}
{{- range . }}
{{- if .metadata }}
- {{ printf "--cloud-metadata-accounts=%s" (compact (list .provider .account .network) | join "/") | quote }}
{{- end }}
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
{{- $keys := list -}}
{{- range $names -}}{{- $keys = append $keys (include "talos-ccm.key" .) -}}{{- end -}}
{{- range uniq $keys -}}
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
