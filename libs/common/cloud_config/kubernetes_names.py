"""Validates keys, label values and taints as Kubernetes does (apimachinery); names reserved keys."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from libs.common.cloud_config.model import Kind
from libs.common.contract.node import CONDITION_TAINTS, UNPLANNED_ANNOTATIONS

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_MOST_NAME: Final = 63
_MOST_PREFIX: Final = 253
_MOST_LABEL_VALUE: Final = 63
EFFECTS: Final[tuple[str, ...]] = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class TaintText(msgspec.Struct, frozen=True):
    """A parsed `value:Effect` or `Effect`."""

    value: str
    effect: str


def key_problem(key: str) -> str:
    """Return why the text is not a valid key of a label, annotation or taint; "" if it is."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > _MOST_PREFIX or not _SUBDOMAIN.fullmatch(prefix)):
        return (
            f"its part before the / must be a DNS name in lower case, such as example.com, of at most "
            f"{_MOST_PREFIX} characters"
        )
    if len(name) > _MOST_NAME:
        return f"its name is longer than {_MOST_NAME} characters"
    if not _NAME.fullmatch(name):
        return "its name must be of letters, digits, -, _ and ., and begin and end with a letter or digit"
    return ""


def label_value_problem(value: str) -> str:
    """Return why the text is not a valid label value; "" if it is, as the empty text is."""
    if len(value) > _MOST_LABEL_VALUE:
        return f"a label value has at most {_MOST_LABEL_VALUE} characters, this has {len(value)}"
    if value and not _NAME.fullmatch(value):
        allowed = "letters, digits, -, _ and ."
        return f"a label value consists of {allowed}, and begins and ends with a letter or digit"
    return ""


def parse_taint(text: str) -> TaintText:
    """Parse `value:Effect` or `Effect`. Raises ValueError with the expectation."""
    value, _, effect = text.rpartition(":")
    if effect not in EFFECTS:
        raise ValueError(f"value:Effect or Effect, with one of the effects {', '.join(EFFECTS)}")
    if problem := label_value_problem(value):
        raise ValueError(f"value:Effect with a value that Kubernetes takes: {problem}")
    return TaintText(value, effect)


# ---- keys that no rule may set: another component owns them and would change them back

_TALOS: Final = "it is Talos's own"
_KUBELET: Final = "it is the kubelet's own"
_KUBERNETES: Final = "it is Kubernetes' own"
_OURS: Final = "it is this controller's own"
_CONDITION: Final = "Kubernetes sets and removes it by the condition of the node"
_CLOUD_PROVIDER: Final = "it is the cloud provider's own"

# A domain includes its slash: talos.dev/x belongs to Talos, mytalos.dev/x does not.
_PREFIXES: Final[Mapping[str, str]] = {
    "talos.dev/": _TALOS,
    "networking.talos.dev/": _TALOS,
    "cluster.talos.dev/": _TALOS,
    "extensions.talos.dev/": _TALOS,
    "node.cloudprovider.kubernetes.io/talos-ccm-": _OURS,
    "talos-ccm.node-restriction.kubernetes.io/": _OURS,
}
_KEYS: Final[Mapping[Kind, Mapping[str, str]]] = {
    "labels": {
        "kubernetes.io/hostname": _KUBELET,
        "kubernetes.io/os": _KUBELET,
        "kubernetes.io/arch": _KUBELET,
        "beta.kubernetes.io/os": _KUBELET,
        "beta.kubernetes.io/arch": _KUBELET,
    },
    "annotations": {
        "alpha.kubernetes.io/provided-node-ip": _KUBELET,
        "node.alpha.kubernetes.io/ttl": _KUBERNETES,
        **dict.fromkeys(UNPLANNED_ANNOTATIONS, _KUBELET),
    },
    "taints": {
        **dict.fromkeys(CONDITION_TAINTS, _CONDITION),
        "node.cloudprovider.kubernetes.io/uninitialized": _CLOUD_PROVIDER,
        "node.cloudprovider.kubernetes.io/shutdown": _CLOUD_PROVIDER,
    },
    "platformMetadata": {
        "hostname": "a machine's hostname cannot be overridden",
        "platform": "a machine's platform cannot be overridden",
    },
}


def why_reserved(kind: Kind, key: str) -> str:
    """Return why no rule may set that key, "" if a rule may."""
    if kind != "platformMetadata":
        for prefix, why in _PREFIXES.items():
            if key.startswith(prefix):
                return why
    return _KEYS[kind].get(key, "")
