"""The Nodes whose providerID names an instance of this cloud."""

from collections.abc import Callable, Iterator

import msgspec

from libs.common.contract.instances import InstanceRecord, read_instance_record
from libs.common.contract.node import Node


class CloudNode(msgspec.Struct, frozen=True, kw_only=True):
    """One Node, and the instance that its providerID names."""

    name: str
    uid: str
    provider_id: str
    instance_id: str
    is_ready: bool
    record: InstanceRecord | None  # of this account; None: its instance was never seen alive


class NodeTable:
    """The Nodes by name. Only canonical providerIDs count: others name no instance that can be asked for."""

    def __init__(self, account: str, parse_provider_id: Callable[[str], str | None]) -> None:
        """`parse_provider_id` is that of the account's cloud."""
        self._account = account
        self.parse_provider_id = parse_provider_id
        self._nodes: dict[str, CloudNode] = {}

    def __iter__(self) -> Iterator[CloudNode]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, name: str) -> CloudNode | None:
        """Return the Node of that name."""
        return self._nodes.get(name)

    def upsert(self, node: Node) -> None:
        """Store the Node's current state."""
        instance_id = self.parse_provider_id(node.spec.provider_id)
        if instance_id is None:
            self.remove(node.name)
            return
        record = read_instance_record(node)
        ready = node.find_condition("Ready")
        self._nodes[node.name] = CloudNode(
            name=node.name,
            uid=node.uid,
            provider_id=node.spec.provider_id,
            instance_id=instance_id,
            is_ready=ready is not None and ready.status == "True",
            record=record if record is not None and record.account == self._account else None,
        )

    def remove(self, name: str) -> None:
        """Forget the Node."""
        self._nodes.pop(name, None)

    def clear(self) -> None:
        """Forget all Nodes."""
        self._nodes.clear()
