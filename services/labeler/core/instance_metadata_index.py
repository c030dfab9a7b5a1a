"""Knows what cloud accounts report of instances, and which machines name the same one."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from libs.common.contract.events import (
    EnrichedNodeGone,
    InstanceMetadata,
    NodeEnriched,
    NodeUnreachable,
)
from libs.common.contract.instance_metadata import find_named_instance
from libs.common.contract.machine import MachineFacts
from services.labeler.core.instance_metadata import NamedMachine, complete_facts

EventT = TypeVar("EventT")


class InstanceMetadataIndex:
    """Completes the facts in events of metadata. Without an account, it returns each event as it is."""

    def __init__(self, accounts: Mapping[str, str]) -> None:
        """`accounts` has the provider of each account that may supply metadata."""
        self._accounts = accounts
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
        self._completed.clear()

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
            self._completed.pop(event.name, None)

    def complete(self, event: EventT) -> EventT:
        """Return the event with the facts that count; the same object as long as nothing has changed."""
        if not self._accounts or not isinstance(event, NodeEnriched):
            return event
        known = self._completed.get(event.node.name)
        if known is None or known[0] is not event:
            known = self._completed[event.node.name] = event, self._complete(event)
        return known[1]  # type: ignore[return-value]  # as the event, it is a NodeEnriched

    def _complete(self, event: NodeEnriched) -> NodeEnriched:
        name = event.node.name
        facts = complete_facts(
            NamedMachine(node=event.node, facts=event.facts, verified_by=event.verified_by),
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
        self._completed.pop(name, None)
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
                    self._completed.pop(other, None)
