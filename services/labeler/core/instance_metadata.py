"""Decides whether a cloud account supplies the metadata of a machine: only if the machine is that instance.

The index knows what accounts report of instances, and which machines name the same one: a machine may name a
neighbour's instance. See docs/decisions/0042-instance-metadata-from-a-cloud.md.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

import msgspec

from libs.common.contract.events import (
    EnrichedNodeGone,
    InstanceMetadata,
    NodeEnriched,
    NodeUnreachable,
)
from libs.common.contract.instance_metadata import METADATA_PROVIDERS, find_named_instance, lacks_cloud
from libs.common.contract.instances import get_provider
from libs.common.contract.ip_addresses import canonical_ip
from libs.common.contract.machine import AddressStatus, MachineFacts, PlatformMetadata, Supplement
from libs.common.contract.node import Node
from libs.common.contract.public_addresses import EXTERNAL_LINK, list_machine_ips, parse_public_ip

_FIELDS: Final = ("provider_id", "region", "zone", "instance_type")
EventT = TypeVar("EventT")


def complete_facts(
    event: NodeEnriched,
    accounts: Mapping[str, str],
    messages: Mapping[str, InstanceMetadata],
    list_rivals: Callable[[str], AbstractSet[str]],
) -> MachineFacts:
    """Return the facts of the event, completed by the one account that has the machine's instance.

    `accounts` has the provider of each account, `messages` its last message about the Node. `list_rivals`
    returns the names of the other Nodes whose machines name an instance. Without a confirmation, the facts of
    a machine that names an instance say why they are not complete. A Node with a providerID of such a cloud
    may have got metadata before, and a doubt changes none of them.
    """
    node, facts = event.node, event.facts
    if not lacks_cloud(facts):
        return facts
    if facts.system is None and accounts:
        return _await(
            node, facts, accounts, "metadata has not queried its SMBIOS (--cloud-metadata-accounts)"
        )
    named = {account: find_named_instance(provider, facts) for account, provider in accounts.items()}
    reasons = {
        account: _why_not_confirmed(event, provider_id, messages.get(account), list_rivals(provider_id))
        for account, provider_id in named.items()
        if provider_id
    }
    confirmed = [account for account, why in reasons.items() if not why]
    if len(confirmed) > 1:
        both = " and ".join(confirmed)
        return _await(node, facts, accounts, f"accounts {both} both have {named[confirmed[0]]}")
    if not confirmed:
        whys = "; ".join(f"account {account}: {why}" for account, why in reasons.items())
        return _await(node, facts, accounts, whys) if reasons else facts
    [account] = confirmed
    return _supply(facts, messages[account], METADATA_PROVIDERS[accounts[account]].labels)


def _why_not_confirmed(
    event: NodeEnriched, provider_id: str, message: InstanceMetadata | None, rivals: AbstractSet[str]
) -> str:
    """Return why the machine is not proven to be the instance that it names; "" if it is."""
    node, facts = event.node, event.facts
    if rivals:
        return f"the machine of Node {min(rivals)} names {provider_id}, too, so neither gets its metadata"
    if event.verified_by != "nodename":
        return f"the machine that names {provider_id} has another node name, and only its systemUUID is known"
    if message is None or (message.node_uid, message.provider_id) != (node.uid, provider_id):
        return f"no answer about {provider_id} yet"
    if message.why_withheld:
        return f"{provider_id}: {message.why_withheld}"
    if canonical_ip(facts.node_ip) not in map(canonical_ip, message.addresses):
        found = ", ".join(message.addresses) or "none that counts"
        return f"the machine was reached at {facts.node_ip}, but the addresses of {provider_id} are {found}"
    if not node.spec.provider_id and message.asked_at < facts.queried_at:
        # If it stays, cloud's clock is behind metadata's.
        return f"no answer about {provider_id} since the machine was last reached, by their clocks"
    return ""


def _await(node: Node, facts: MachineFacts, accounts: Mapping[str, str], why: str) -> MachineFacts:
    provider_id = node.spec.provider_id
    if provider_id and get_provider(provider_id) not in accounts.values():
        return facts  # nothing was supplied that this Node keeps, such as if it has the fallback
    return msgspec.structs.replace(facts, supplement=Supplement(why_awaited=why))


def _supply(facts: MachineFacts, message: InstanceMetadata, labels: Mapping[str, str]) -> MachineFacts:
    """Return the facts with what only the account knows: the machine's own metadata wins."""
    reported = facts.platform
    added = {
        field: getattr(message, field)
        for field in _FIELDS
        if not getattr(reported, field) and getattr(message, field)
    }
    platform: PlatformMetadata = msgspec.structs.replace(reported, **added)
    own = list_machine_ips(facts)
    public = (
        AddressStatus(address=address, link=EXTERNAL_LINK)
        for address in message.addresses
        if parse_public_ip(address) in own  # csr attests no other one
    )
    return msgspec.structs.replace(
        facts,
        platform=platform,
        addresses=(*facts.addresses, *public),
        supplement=Supplement(account=message.account, fields=tuple(added), labels=labels),
    )


class InstanceMetadataIndex:
    """Completes the facts in events of metadata. Without an account, it returns each event as it is."""

    def __init__(self, accounts: Mapping[str, str]) -> None:
        """`accounts` has the provider of each account that may supply metadata."""
        self._accounts = accounts
        self._changed: set[str] = set()  # Nodes whose event may be completed otherwise than before
        self.clear()
        self.clear_metadata()

    def clear(self) -> None:
        """Forget all machines: the flow belongs to another stream."""
        self._named: dict[str, frozenset[str]] = {}  # by Node: the instances that its machine names
        self._namers: dict[str, set[str]] = {}  # the same by instance
        self._completed: dict[str, tuple[NodeEnriched, NodeEnriched]] = {}  # by Node: an event, and completed

    def clear_metadata(self) -> None:
        """Forget the messages of all accounts, which are followed beside the flow."""
        self._messages: dict[str, dict[str, InstanceMetadata]] = {}  # by Node and account
        for name in tuple(self._completed):
            self._forget_completed(name)

    def apply(self, event: object) -> None:
        """Apply an event of the flow.

        A machine that does not answer still names what it named, unless another one answers in its place.
        """
        match event:
            case NodeEnriched(node=node, facts=facts):
                self._record_named(node.name, facts)
            case NodeUnreachable(node=node, fault=fault) if fault.kind == "wrong_machine":
                self._record_named(node.name, None)
            case NodeUnreachable(node=node, last_known=MachineFacts() as facts):
                self._record_named(node.name, facts)
            case EnrichedNodeGone(name=name):
                self._record_named(name, None)
                self._messages.pop(name, None)

    def apply_metadata(self, event: InstanceMetadata) -> None:
        """Apply a message of an account, unless it may be a repetition."""
        of_node = self._messages.setdefault(event.name, {})
        before = of_node.get(event.account)
        if before is None or before.asked_at < event.asked_at:
            of_node[event.account] = event
            self._forget_completed(event.name)

    def complete(self, event: EventT) -> EventT:
        """Return the event with the facts that count; the same object as long as nothing has changed."""
        if not self._accounts or not isinstance(event, NodeEnriched):
            return event
        known = self._completed.get(event.node.name)
        if known is None or known[0] is not event:
            known = self._completed[event.node.name] = event, self._complete(event)
        return known[1]  # type: ignore[return-value]  # as the event, it is a NodeEnriched

    def take_changed(self) -> set[str]:
        """Return the Nodes whose event `complete` may return otherwise than before the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _complete(self, event: NodeEnriched) -> NodeEnriched:
        name = event.node.name
        facts = complete_facts(
            event,
            self._accounts,
            self._messages.get(name, {}),
            lambda provider_id: self._namers.get(provider_id, set()) - {name},
        )
        return event if facts is event.facts else msgspec.structs.replace(event, facts=facts)

    def _record_named(self, name: str, facts: MachineFacts | None) -> None:
        named: frozenset[str] = frozenset()
        if facts is not None:
            named = frozenset(find_named_instance(each, facts) for each in self._accounts.values()) - {""}
        before = self._named.pop(name, frozenset())
        self._forget_completed(name)
        if named:
            self._named[name] = named
        for provider_id in before | named:
            namers = self._namers.setdefault(provider_id, set())
            namers.discard(name)
            if provider_id in named:
                namers.add(name)
            elif not namers:
                del self._namers[provider_id]
            if named != before:
                for other in namers:
                    self._forget_completed(other)

    def _forget_completed(self, name: str) -> None:
        if self._completed.pop(name, None) is not None:
            self._changed.add(name)
