"""Whether kubelets use an external cloud provider, announce an address and request certificates. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from cli.cluster.unavailable import Unavailable
from cli.doctor.findings import APPROVAL_OFF, Check, Finding
from cli.doctor.snapshot import InstallationSnapshot
from cli.lines import format_names, pluralize
from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import why_not_owned, why_not_selected
from libs.common.contract.controllers import CLOUD_NODE, CSR_APPROVAL
from libs.common.contract.ip_addresses import InvalidNodeIP, parse_node_ips
from libs.common.contract.node import PROVIDED_NODE_IP_ANNOTATION, UNINITIALIZED_TAINT, Node

_PATCH: Final = (
    "talosctl --nodes MACHINE patch machineconfig --patch @deploy/talos/worker-patch.yaml  # control "
    "planes: controlplane-patch.yaml"
)


def check_kubelets(seen: InstallationSnapshot) -> Check:
    """Check that each Node has a valid provided-node-ip annotation.

    An external kubelet with --node-ip writes it; on Talos it always has one.
    """
    if isinstance(seen.nodes, Unavailable):
        yield Finding.unavailable("Nodes are unknown", seen.nodes)
        return ""
    nodes = _select_own_nodes(seen, CLOUD_NODE, seen.nodes)
    yield from _find_not_external(nodes)
    yield from _find_without_address(nodes)
    yield from _find_invalid_address(nodes)
    left = len(seen.nodes) - len(nodes)
    return (
        f"{pluralize(len(nodes), 'Node')}: kubelets use an external cloud provider and announce their "
        f"addresses{f'; {left} excluded by `ownership`' if left else ''}"
    )


def _select_own_nodes(seen: InstallationSnapshot, controller: str, nodes: Sequence[Node]) -> list[Node]:
    ownership = seen.get_ownership(controller)
    return [node for node in nodes if not _is_foreign(node, ownership)]


def _is_foreign(node: Node, ownership: Ownership) -> bool:
    """Whether another controller owns the Node. A Node without a providerID may still become ours."""
    if not node.spec.provider_id:
        return bool(why_not_selected(ownership, node))
    return bool(why_not_owned(ownership, node))


def _find_not_external(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Yield Nodes whose kubelet has no external cloud provider.

    Such a kubelet sets no taint, removes the annotation, and never sets a providerID.
    """
    bare = [n.name for n in nodes if not n.provided_node_ip and n.is_initialized and not n.spec.provider_id]
    if bare:
        yield Finding.wrong(
            f"{format_names(bare)}: no taint {UNINITIALIZED_TAINT}, no providerID and no annotation "
            f"{PROVIDED_NODE_IP_ANNOTATION}: their kubelets run without --cloud-provider=external, so no "
            "controller initializes them",
            "set cluster.externalCloudProvider.enabled: true in the machine config: the kubelet restarts and "
            "sets the annotation, and the labeler writes the Node (or exclude it by `ownership` in the "
            "--cloud-config file):",
            _PATCH,
        )


def _find_without_address(nodes: Sequence[Node]) -> Iterator[Finding]:
    lacking = [
        n.name for n in nodes if not n.provided_node_ip and (not n.is_initialized or n.spec.provider_id)
    ]
    if lacking:
        yield Finding.wrong(
            f"{format_names(lacking)}: no annotation {PROVIDED_NODE_IP_ANNOTATION}, so their machines "
            "cannot be queried",
            "a kubelet with --cloud-provider=external and --node-ip sets the annotation. On Talos, set "
            "cluster.externalCloudProvider.enabled: true; on other systems, set --node-ip. Then restart "
            "the kubelet:",
            _PATCH,
            "talosctl --nodes MACHINE service kubelet restart",
        )


def _find_invalid_address(nodes: Sequence[Node]) -> Iterator[Finding]:
    for node in nodes:
        ips = parse_node_ips(node.provided_node_ip) if node.provided_node_ip else ()
        if isinstance(ips, InvalidNodeIP):
            yield Finding.wrong(
                f"{node.name}: annotation {PROVIDED_NODE_IP_ANNOTATION}: {ips.reason}",
                "set machine.kubelet.nodeIP.validSubnets in its machine config; the kubelet writes the "
                "address it was started with:",
                f"kubectl get node {node.name} --output yaml",
            )


def check_serving_certificates(seen: InstallationSnapshot) -> Check:
    """Check that kubelets request serving certificates.

    Such a kubelet has created a request within the last hour, or has serverTLSBootstrap enabled.
    """
    if not seen.installation.runs_service("csr"):
        return APPROVAL_OFF
    nodes, requests = seen.nodes, seen.requests
    if isinstance(nodes, Unavailable) or isinstance(requests, Unavailable):
        missing = next(part for part in (nodes, requests) if isinstance(part, Unavailable))
        yield Finding.unavailable("some requests or Nodes are unknown", missing)
        return ""
    own = {node.name for node in _select_own_nodes(seen, CSR_APPROVAL, nodes)}
    filed = own & {request.node_name for request in requests}
    answers = {name: answer for name, answer in seen.serving.items() if name in own - filed}
    no = [name for name, answer in answers.items() if answer is False]
    if no:
        yield Finding.wrong(
            f"{format_names(no)}: kubelets use self-signed serving certificates (serverTLSBootstrap is off)",
            'set machine.kubelet.extraArgs.rotate-server-certificates: "true" in the machine config:',
            _PATCH,
        )
    unknown = {name: answer for name, answer in answers.items() if isinstance(answer, Unavailable)}
    if unknown:
        first = next(iter(unknown.values()))
        yield Finding.unknown(
            f"{format_names(unknown)}: no request within the last hour, and the kubelet configuration is "
            f"unknown: {first.explanation}",
            first.fix if first.required_permission else "read the kubelet configuration:",
            *(first.commands or (f"kubectl get --raw /api/v1/nodes/{min(unknown)}/proxy/configz",)),
        )
    requesting = len(filed) + len(answers)
    more = f"; {len(own) - requesting} more not checked" if len(own) > requesting else ""
    return f"{pluralize(requesting, 'Node')}: kubelets request serving certificates{more}"
