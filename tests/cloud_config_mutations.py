"""Broken config files: mutations of real ones, the same for the same seed."""

import random
from collections.abc import Iterator

from tests.fuzz.mutations import mutate

REFERENCE_SAMPLE = r"""# as in the documentation of the Talos cloud controller manager
global:
  PreferIPv6: false
transformations:
  - name: nocloud-nodes
    nodeSelector:
      - matchExpressions:
          - key: platform
            operator: In
            values:
              - nocloud
    labels:
      pvc-storage-class/name: "my-storage-class"
  - name: web-nodes
    nodeSelector:
      - matchExpressions:
          - key: platform
            operator: In
            values:
              - metal
          - key: hostname
            operator: Regexp
            values:
              - ^web-[\w]+$
      - matchExpressions:
          - key: hostname
            operator: Regexp
            values:
              - ^web-cloud-.+$
    annotations:
      custom-annotation/instance-id: "id-{{ .InstanceID }}"
      custom-annotation/cloud-id: '{{ regexFindString "^web-([a-z0-9]+)-(.*)$" .Hostname 1 }}'
    labels:
      node-role.kubernetes.io/web: ""
      node-role.kubernetes.io/capacity-type: "{{ if .Spot }}spot{{ else }}on-demand{{ end }}"
    taints:
      node.cloudprovider.kubernetes.io/storage-type: "ceph:NoSchedule"
    platformMetadata:
      Region: "{{ .Region }}-on-metal"
      Zone: "us-west-1f"
      InstanceType: "{{ .SKUNumber }}"
      ProviderID: "someproviderID:///{{ .UUID }}"
    features:
      publicIPDiscovery: true
"""
MERGED = """transformations:
  - name: ours
    sanitize: yes
    labels: &labels
      a.example/x: '{{ .ProductName }}'
      plain: 1.10
    nodeSelector: [{matchExpressions: [{key: tags.Role, operator: NotIn, values: [db, 7]}]}]
  - labels:
      <<: *labels
      plain: |
        {{- .TalosVersion -}}
  - taints: {a: '{{ .Zone }}:NoExecute', b: PreferNoSchedule}
    nodeSelector:
      - name: big
        matchExpressions: [{key: CPUCores, operator: Gt, values: ["32"]}, {key: spot, operator: Exists}]
"""
POOLS = """ipam:
  pools:
    - name: metal
      cidrs: [10.8.0.0/16, fd00:8::/56]
      nodeSelector: [{matchExpressions: [{key: platform, operator: In, values: [metal]}]}]
      maskSizeIPv4: 24
    - name: rest
      cidrs:
        - 10.9.0.0/17
        - 10.9.128.0/18
      maskSizeIPv6: ~
"""
OWNERSHIP = """ownership:
  nodeSelector:
    - matchExpressions:
        - {key: team.example/name, operator: In, values: [a, b]}
        - {key: metadata.name, operator: Regexp, values: ["^web-"]}
  providerIDSchemes: [talos, hcloud]
  controllers:
    - name: cloud-node-lifecycle
      providerIDSchemes: [talos]
    - {name: nodeipam}
"""
SEEDS = (REFERENCE_SAMPLE, MERGED, POOLS, OWNERSHIP, "global: {clusterName: prod, preferIPv6: true}\n", "")


def generate_mutations(count: int, seed: int = 5) -> Iterator[str]:
    """So many files, each a few mutations away from one that is right."""
    chance, seeds = random.Random(seed), [text.encode() for text in SEEDS]
    for _ in range(count):
        mutated = mutate(chance.choice(seeds), chance.choice(seeds), chance, max_bytes=2**15)
        yield mutated.decode(errors="replace")
