"""Records in each message about a Node when the flow first showed the addresses that the Node claims."""

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from libs.common.contract.address_history import AddressHistory, FirstShown
from libs.common.contract.events import EnrichedNode, EnrichedNodeGone, NodeEnriched, NodeUnreachable
from libs.common.contract.ip_addresses import canonical_ip, list_node_ips
from libs.common.contract.machine import MachineFacts
from libs.common.contract.public_addresses import iterate_machine_addresses

_NONE_SHOWN = (None, 0)


@dataclass(eq=False)
class ShownAddresses:
    """The addresses that the last message about one Node showed.

    A replica that starts does not know in which order the machines got the addresses that no message shows
    yet. Then, and for all Nodes of a new stream, no such claim precedes another one.
    """

    # Whether the messages show all that this replica knew of the Node before its last poll.
    is_up_to_date: bool = False
    last: tuple[EnrichedNode | None, int] = _NONE_SHOWN  # event and sequence
    is_lost: bool = False  # the stream has lost the last message, and perhaps reuses its sequence

    def receive(self, event: EnrichedNode, sequence: int) -> None:
        """Store a received message, unless it is older than the last one, or that one itself."""
        if self.is_lost or sequence > self.last[1]:
            self.last, self.is_lost = (event, sequence), False

    def published(self, event: EnrichedNode, sequence: int) -> None:
        """Store that the stream has this event, with that sequence."""
        self.last, self.is_lost = (event, sequence), False
        self.is_up_to_date = True

    def add_history(self, event: EnrichedNode) -> EnrichedNode:
        """Return the event with its history of addresses."""
        if isinstance(event, EnrichedNodeGone):
            return event
        history = continue_history(event, *self.last, is_exact=self.is_up_to_date)
        return replace(event, address_history=history)


def continue_history(
    event: NodeEnriched | NodeUnreachable, last: EnrichedNode | None, sequence: int, *, is_exact: bool
) -> AddressHistory:
    """Return the history of the event's addresses after the last message, which has that sequence.

    An address that the last message does not show starts with the event. `is_exact`: the machine got it since
    the last message, or with the Node; otherwise it may have had it before. Addresses in a Node object, which
    its kubelet writes, and those that a machine attests do not continue one another. The podCIDRs of the Node
    have a history, too, which is never exact: their change alone causes no message.
    """
    if not isinstance(last, NodeEnriched | NodeUnreachable) or last.node.uid != event.node.uid:
        return AddressHistory(since=FirstShown(0, None if is_exact else 0))
    was, now = _select_facts(last), _select_facts(event)
    history, known_cidrs = last.address_history.resolve(sequence), last.node.spec.pod_cidrs
    new = FirstShown(0, None if is_exact else sequence)
    cidrs = {
        cidr: history.get(cidr) if cidr in known_cidrs else FirstShown(0, sequence)
        for cidr in event.node.spec.pod_cidrs
    }
    if (was is None) != (now is None):
        return AddressHistory(since=new, later=cidrs)
    before, after = set(_iter_addresses(last, was)), set(_iter_addresses(event, now))
    later = {address: shown for address, shown in history.later.items() if address in before & after}
    later.update(dict.fromkeys(after - before, new))
    later.update({cidr: shown for cidr, shown in cidrs.items() if shown != history.since})
    return AddressHistory(since=history.since, later=later)


def _select_facts(event: NodeEnriched | NodeUnreachable) -> MachineFacts | None:
    return event.facts if isinstance(event, NodeEnriched) else event.last_known


def _iter_addresses(event: NodeEnriched | NodeUnreachable, facts: MachineFacts | None) -> Iterable[str]:
    """Yield the addresses that the Node claims: those of its machine or, without facts, of its object."""
    node = event.node
    if facts is not None:
        return map(canonical_ip, iterate_machine_addresses(facts))
    ips = map(str, list_node_ips(node.provided_node_ip))
    return (*ips, *(canonical_ip(address.address) for address in node.status.addresses))
