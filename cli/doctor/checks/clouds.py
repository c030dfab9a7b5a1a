"""Whether cloud accounts have seen the instances of their Nodes, as lifecycle needs for a deletion. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from cli.cluster.unavailable import Unavailable
from cli.doctor.findings import Check, Finding
from cli.doctor.snapshot import InstallationSnapshot
from cli.lines import format_names, pluralize
from libs.clouds.instances import CREDENTIAL_ANCHOR
from libs.common.contract.instances import InstanceAnchor, InstanceRecord, get_provider, read_instance_record
from libs.common.contract.node import Node


def check_clouds(seen: InstallationSnapshot) -> Check:
    """Check the records that accounts have shown the instances of Nodes alive."""
    if isinstance(seen.nodes, Unavailable):
        yield Finding.unavailable("Nodes are unknown", seen.nodes)
        return ""
    records = {node.name: record for node in seen.nodes if (record := read_instance_record(node)) is not None}
    yield from _find_never_seen(seen.nodes, records)
    if not records:
        return "no cloud account has seen the instance of a Node; none is needed"
    counts = Counter(record.account for record in records.values())
    anchors = defaultdict(set)
    for record in records.values():
        anchors[record.account].add(record.anchor)
    return "; ".join(
        f"account {account} has seen the instances of {pluralize(counts[account], 'Node')} alive"
        f"{_explain_last_node(anchors[account])}"
        for account in sorted(counts)
    )


def _find_never_seen(nodes: tuple[Node, ...], records: dict[str, InstanceRecord]) -> Iterator[Finding]:
    """Yield silent Nodes of a cloud that has an account, and without a record: they stay.

    A kubelet that reports that it is not ready is alive, such as that of a Node that waits for its CNI.
    """
    clouds = {get_provider(record.provider_id) for record in records.values()}
    names = [
        node.name
        for node in nodes
        if node.name not in records and _is_silent(node) and get_provider(node.spec.provider_id) in clouds
    ]
    if names:
        yield Finding.wrong(
            f"{format_names(names)}: silent, and no account has ever seen the instance alive, so "
            "lifecycle keeps the Node for ever",
            "if the cloud's console does not show the server either:",
            f"kubectl delete node {' '.join(names)}",
        )


def _is_silent(node: Node) -> bool:
    ready = node.find_condition("Ready")
    return ready is not None and ready.status == "Unknown"


def _explain_last_node(anchors: set[InstanceAnchor | None]) -> str:
    if any(anchor is not None and anchor.kind != CREDENTIAL_ANCHOR for anchor in anchors):
        return ""
    return " (its project has no object that outlives servers, so its last Node stays: create an SSH key)"
