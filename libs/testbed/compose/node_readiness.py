"""Whether nodes are usable: no uninitialized taint, with pod CIDRs and a serving certificate. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from libs.testbed.kubelet_node import UNINITIALIZED
from libs.testbed.signing_requests import read_outcome


def list_missing(
    nodes: Iterable[Mapping[str, Any]],
    requests: Iterable[Mapping[str, Any]],
    node_by_request: Mapping[str, str],
) -> list[str]:
    """One sentence per node that lacks something; `node_by_request` maps names of requests to nodes."""
    existing = {node["metadata"]["name"]: node for node in nodes}
    issued = {
        node_by_request.get(each["metadata"]["name"]) for each in requests if read_outcome(each).certificate
    }
    missing = []
    for name in node_by_request.values():
        lacks = [*_list_missing_of_node(existing.get(name)), *([] if name in issued else ["certificate"])]
        missing += [f"{name} lacks {', '.join(lacks)}"] if lacks else []
    return missing


def _list_missing_of_node(node: Mapping[str, Any] | None) -> list[str]:
    if node is None:
        return ["Node"]
    spec = node["spec"]
    tainted = any(taint["key"] == UNINITIALIZED["key"] for taint in spec.get("taints", ()))
    return [
        *(["initialization"] if tainted else []),
        *([] if "providerID" in spec else ["providerID"]),
        *([] if "podCIDRs" in spec else ["podCIDRs"]),
    ]
