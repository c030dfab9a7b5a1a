{{/* The connections that the pods of one component open, in the two kinds of network policies. */}}

{{- define "talos-ccm.egress" -}}
{{- $values := .root.Values.networkPolicy.egress -}}
- to: # cluster DNS, and DNS servers that are no pod of it
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: kube-system
      podSelector:
        matchExpressions:
          - key: k8s-app
            operator: In
            values: [kube-dns, node-local-dns]
    {{- range $values.dnsCIDRs }}
    - ipBlock:
        cidr: {{ . | quote }}
    {{- end }}
  ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
{{- if .root.Values.nats.enabled }}
- to:
    - podSelector:
        matchLabels:
          {{- include "talos-ccm.selector" .root | nindent 10 }}
          app.kubernetes.io/component: nats
  ports:
    - port: {{ ternary 6222 4222 .needs.isNats }}
      protocol: TCP
{{- end }}
{{- $ports := concat (ternary $values.apiServerPorts list .needs.api) (ternary (list 50000) list .needs.talos) }}
{{- range list (dict "ports" $ports "cidrs" $values.nodeCIDRs) (dict "ports" (ternary $values.cloudPorts list .needs.cloud) "cidrs" $values.cloudCIDRs) }}
{{- if and .ports .cidrs }}
- to:
    {{- range .cidrs }}
    - ipBlock:
        cidr: {{ . | quote }}
    {{- end }}
  ports:
    {{- range .ports }}
    - port: {{ . }}
      protocol: TCP
    {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Cilium matches nodes and kube-apiserver by entities, and never by networks. Networks match addresses outside the
     cluster, such as a load balancer before kube-apiserver. */}}
{{- define "talos-ccm.ciliumEgress" -}}
{{- $values := .root.Values.networkPolicy.egress -}}
- toEndpoints:
    - matchLabels:
        k8s:io.kubernetes.pod.namespace: kube-system
      matchExpressions:
        - key: k8s:k8s-app
          operator: In
          values: [kube-dns, node-local-dns]
  toPorts:
    - ports:
        - port: "53"
          protocol: ANY
- toEntities: [host] # NodeLocal DNSCache on the host network
  toPorts:
    - ports:
        - port: "53"
          protocol: ANY
{{- with $values.dnsCIDRs }}
- toCIDR:
    {{- toYaml . | nindent 4 }}
  toPorts:
    - ports:
        - port: "53"
          protocol: ANY
{{- end }}
{{- if .root.Values.nats.enabled }}
- toEndpoints:
    - matchLabels:
        {{- include "talos-ccm.selector" .root | nindent 8 }}
        app.kubernetes.io/component: nats
  toPorts:
    - ports:
        - port: {{ ternary "6222" "4222" .needs.isNats | quote }}
          protocol: TCP
{{- end }}
{{- range $need := list (dict "ports" (ternary $values.apiServerPorts list .needs.api) "entities" (list "kube-apiserver")) (dict "ports" (ternary (list 50000) list .needs.talos) "entities" (list "host" "remote-node" "kube-apiserver")) }}
{{- if $need.ports }}
{{- range $to := list (dict "toEntities" $need.entities) (dict "toCIDR" $values.nodeCIDRs) }}
- {{ toYaml $to | nindent 2 | trim }}
  toPorts:
    - ports:
        {{- range $need.ports }}
        - port: {{ . | quote }}
          protocol: TCP
        {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .needs.cloud $values.cloudCIDRs }}
- toCIDR:
    {{- toYaml $values.cloudCIDRs | nindent 4 }}
  toPorts:
    - ports:
        {{- range $values.cloudPorts }}
        - port: {{ . | quote }}
          protocol: TCP
        {{- end }}
{{- end }}
{{- end }}
