"""Keys that no rule may set, because another component owns them and would change them back."""

from collections.abc import Mapping
from typing import Final

from libs.common.cloud_config.model import Kind
from libs.common.contract.planned_fields import CONDITION_TAINTS

_TALOS: Final = "it is Talos's own"
_KUBELET: Final = "it is the kubelet's own"
_KUBERNETES: Final = "it is Kubernetes' own"
_OURS: Final = "it is this controller's own"
_CONDITION: Final = "Kubernetes sets and removes it by the condition of the node"
_CLOUD_PROVIDER: Final = "it is the cloud provider's own"

# A prefix includes its slash: talos.dev/x belongs to Talos, mytalos.dev/x does not.
_PREFIXES: Final[Mapping[str, str]] = {
    "talos.dev/": _TALOS,
    "networking.talos.dev/": _TALOS,
    "cluster.talos.dev/": _TALOS,
    "extensions.talos.dev/": _TALOS,
}
_KEYS: Final[Mapping[Kind, Mapping[str, str]]] = {
    "labels": {
        "kubernetes.io/hostname": _KUBELET,
        "kubernetes.io/os": _KUBELET,
        "kubernetes.io/arch": _KUBELET,
        "beta.kubernetes.io/os": _KUBELET,
        "beta.kubernetes.io/arch": _KUBELET,
        "talos-ccm.node-restriction.kubernetes.io/record": _OURS,
    },
    "annotations": {
        "alpha.kubernetes.io/provided-node-ip": _KUBELET,
        "node.alpha.kubernetes.io/ttl": _KUBERNETES,
        "volumes.kubernetes.io/controller-managed-attach-detach": _KUBELET,
        "volumes.kubernetes.io/keep-terminated-pod-volumes": _KUBELET,
        "csi.volume.kubernetes.io/nodeid": _KUBELET,
        "node.cloudprovider.kubernetes.io/talos-ccm-owned": _OURS,
        "node.cloudprovider.kubernetes.io/talos-ccm-apply-taints": _OURS,
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
