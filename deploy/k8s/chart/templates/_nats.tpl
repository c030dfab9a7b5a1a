{{/* The pod of a NATS server, and the labels that separate a single server from several servers. */}}

{{/* "true" if several servers replicate the stream, else "". */}}
{{- define "talos-ccm.natsCluster" -}}
{{- if gt (int .Values.nats.replicas) 1 -}}true{{- end -}}
{{- end }}

{{/* Label of the pods and selector of the client Service. `kubectl apply` keeps the previous workload after a change
     between one and several servers; with this label the Service does not route to it. */}}
{{- define "talos-ccm.natsServers" -}}
talos-ccm/servers: {{ ternary "several" "one" (not (empty (include "talos-ccm.natsCluster" .))) }}
{{- end }}

{{- define "talos-ccm.natsPod" -}}
serviceAccountName: {{ include "talos-ccm.accounts" . }}-nats
automountServiceAccountToken: false # only bootstrap and keeper get a token, from the volume api-access
{{- include "talos-ccm.podCommon" . | nindent 0 }}
initContainers:
  - name: bootstrap # creates missing keys and certificates
    {{- include "talos-ccm.bootstrap" (dict "root" . "keep" false) | nindent 4 }}
containers:
  - name: nats
    image: {{ include "talos-ccm.natsImage" . | quote }}
    imagePullPolicy: {{ .Values.nats.image.pullPolicy }}
    command: [nats-server, --config, /etc/nats-generated/nats.conf]
    ports:
      {{- range $port, $number := dict "client" 4222 "cluster" 6222 "monitor" 8222 }}
      - name: {{ $port }}
        containerPort: {{ $number }}
        protocol: TCP
      {{- end }}
    securityContext:
      {{- toYaml .Values.securityContext | nindent 6 }}
    startupProbe: # checks everything: the next server is replaced only after this one has caught up
      httpGet:
        path: /healthz
        port: monitor
      periodSeconds: 2
      failureThreshold: 900 # the first of several servers waits for a second one, whose node may join late
    livenessProbe: # a single server that fails to write once, such as on a full disk, writes again only after a restart
      httpGet: # of several servers, one also reports the failures of others in a full check, and it disables JetStream itself
        path: /healthz{{ if include "talos-ccm.natsCluster" . }}?js-enabled-only=true{{ end }}
        port: monitor
      periodSeconds: 30
      timeoutSeconds: 5
    readinessProbe:
      httpGet:
        path: /healthz?js-server-only=true
        port: monitor
      periodSeconds: 5
      timeoutSeconds: 5
    resources:
      {{- toYaml .Values.nats.resources | nindent 6 }}
    volumeMounts:
      - name: generated
        mountPath: /etc/nats-generated
        readOnly: true
      - name: data
        mountPath: /data
      - name: tmp
        mountPath: /tmp
  - name: keeper # renews the certificate of the server and loads new keys
    {{- include "talos-ccm.bootstrap" (dict "root" . "keep" true) | nindent 4 }}
    ports:
      - name: metrics
        containerPort: 10464
        protocol: TCP
    {{- /* no readinessProbe: a failing keeper must not remove the server from the Service */}}
    {{- include "talos-ccm.probes" (dict "host" "" "isReady" false) | nindent 4 }}
{{- include "talos-ccm.placement" (dict "root" . "own" dict) | nindent 0 }}
{{- if include "talos-ccm.natsCluster" . }}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "talos-ccm.selector" . | nindent 12 }}
            app.kubernetes.io/component: nats
{{- end }}
volumes:
  - name: generated
    emptyDir:
      medium: Memory # keys are never written to a disk
      sizeLimit: 1Mi
  - name: data
    emptyDir:
      sizeLimit: {{ mul 2 .Values.nats.storeMebibytes }}Mi # also for data that is not compacted yet
  - name: tmp
    emptyDir:
      medium: Memory
      sizeLimit: 16Mi
  - name: api-access # the same as automountServiceAccountToken, but for two of the three containers
    projected:
      defaultMode: 0440
      sources:
        - serviceAccountToken:
            path: token
            expirationSeconds: 3607
        - configMap:
            name: kube-root-ca.crt
            items:
              - key: ca.crt
                path: ca.crt
        - downwardAPI:
            items:
              - path: namespace
                fieldRef:
                  fieldPath: metadata.namespace
{{- end }}
