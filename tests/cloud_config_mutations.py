"""Broken config files: mutations of real ones, the same for the same seed."""

import random
from collections.abc import Callable, Iterator

Mutation = Callable[[str, random.Random], str]

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
TOKENS: tuple[str, ...] = (
    *"{}[]:,-?|>&*!%@`\"'#\t\n\r ",
    *("\x00", "\ufeff", "\u2028", "\x85", "é", "\U0001f600", "{{", "}}", "<<: ", "*a", "&a ", "!!binary "),
    *(
        "!!python/object:os.system ",
        "---\n",
        "...\n",
        "~",
        "null",
        "yes",
        ": ",
        "- ",
        "\\",
        "0x",
        "1e999",
        "=",
    ),
    *("transformations:\n", "nodeSelector:\n", "labels: ", "platform", "Gt", "Regexp", "[" * 70, "{a: " * 70),
    *("x" * 300, "&b [*b]", "? [a]\n: b\n", "%YAML 1.1\n", "\r\n", "2001-13-45", "!!int x", "'", "\x7f"),
)


def generate_mutations(count: int, seed: int = 5) -> Iterator[str]:
    """So many files, each a few mutations away from one that is right."""
    chance = random.Random(seed)
    for _ in range(count):
        text = chance.choice(SEEDS)
        for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
            text = chance.choice(_WAYS)(text, chance)
        yield text


def _insert(text: str, chance: random.Random) -> str:
    at = chance.randint(0, len(text))
    return text[:at] + chance.choice(TOKENS) + text[at:]


def _delete(text: str, chance: random.Random) -> str:
    at = chance.randint(0, len(text))
    return text[:at] + text[at + chance.choice((1, 1, 2, 7, 40)) :]


def _replace(text: str, chance: random.Random) -> str:
    at = chance.randint(0, len(text))
    return text[:at] + chance.choice((chr(chance.randint(1, 0x2FF)), chance.choice(TOKENS))) + text[at + 1 :]


def _truncate(text: str, chance: random.Random) -> str:
    return text[: chance.randint(0, len(text))]


def _lines(change: Callable[[list[str], int, random.Random], None]) -> Mutation:
    def changed(text: str, chance: random.Random) -> str:
        lines = text.splitlines(keepends=True) or ["\n"]
        change(lines, chance.randrange(len(lines)), chance)
        return "".join(lines)

    return changed


def _drop(lines: list[str], at: int, _: random.Random) -> None:
    del lines[at]


def _double(lines: list[str], at: int, chance: random.Random) -> None:
    lines.insert(chance.randint(0, len(lines)), lines[at])


def _indent(lines: list[str], at: int, chance: random.Random) -> None:
    lines[at] = chance.choice(("  ", " ", "\t", "    ")) + lines[at]


def _outdent(lines: list[str], at: int, chance: random.Random) -> None:
    lines[at] = lines[at].removeprefix(" " * chance.choice((1, 2, 4)))


def _swap_value(lines: list[str], at: int, chance: random.Random) -> None:
    head, colon, _ = lines[at].partition(":")
    lines[at] = f"{head}{colon} {chance.choice(TOKENS)}\n"


_WAYS: tuple[Mutation, ...] = (
    _insert,
    _delete,
    _replace,
    _truncate,
    *map(_lines, (_drop, _double, _indent, _outdent, _swap_value)),
)
