"""Decides whether a cloud account supplies the metadata of a machine: only if the machine is that instance.

A machine may name a neighbour's instance. See docs/decisions/0042-instance-metadata-from-a-cloud.md.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from libs.common.contract.events import InstanceMetadata
from libs.common.contract.instance_metadata import METADATA_PROVIDERS, find_named_instance, lacks_cloud
from libs.common.contract.ip_addresses import canonical_ip
from libs.common.contract.machine import AddressStatus, MachineFacts, PlatformMetadata, Supplement
from libs.common.contract.node import Node
from libs.common.contract.public_addresses import EXTERNAL_LINK, list_machine_ips, parse_public_ip

_FIELDS: Final = ("provider_id", "region", "zone", "instance_type")


class NamedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A Node with the facts of its machine, and how metadata recognized the machine."""

    node: Node
    facts: MachineFacts
    verified_by: str


def complete_facts(
    machine: NamedMachine,
    accounts: Mapping[str, str],
    messages: Mapping[str, InstanceMetadata],
    list_rivals: Callable[[str], AbstractSet[str]],
) -> MachineFacts:
    """Return the facts, completed by the one account that has the machine's instance.

    `accounts` has the provider of each account, `messages` its last message about the Node. `list_rivals`
    returns the names of the other Nodes whose machines name an instance. Without a providerID, the facts of a
    machine that names an instance say why they are not complete yet.
    """
    node, facts = machine.node, machine.facts
    if not lacks_cloud(facts):
        return facts
    if facts.system is None and accounts:
        return _await(node, facts, "metadata has not queried its SMBIOS (--cloud-metadata-accounts)")
    named = {account: find_named_instance(provider, facts) for account, provider in accounts.items()}
    reasons = {
        account: _why_not_confirmed(machine, provider_id, messages.get(account), list_rivals(provider_id))
        for account, provider_id in named.items()
        if provider_id
    }
    confirmed = [account for account, why in reasons.items() if not why]
    if len(confirmed) > 1:
        return _await(node, facts, f"accounts {' and '.join(confirmed)} both have {named[confirmed[0]]}")
    if not confirmed:
        whys = "; ".join(f"account {account}: {why}" for account, why in reasons.items())
        return _await(node, facts, whys) if reasons else facts
    [account] = confirmed
    return _supply(facts, messages[account], METADATA_PROVIDERS[accounts[account]].labels)


def _why_not_confirmed(
    machine: NamedMachine, provider_id: str, message: InstanceMetadata | None, rivals: AbstractSet[str]
) -> str:
    """Return why the machine is not proven to be the instance that it names; "" if it is."""
    node, facts = machine.node, machine.facts
    if rivals:
        return f"the machine of Node {min(rivals)} names {provider_id}, too, so neither gets its metadata"
    if machine.verified_by != "nodename":
        return f"the machine that names {provider_id} has another node name, and only its systemUUID is known"
    if message is None or (message.node_uid, message.provider_id) != (node.uid, provider_id):
        return f"no answer about {provider_id} yet"
    if message.why_withheld:
        return f"{provider_id}: {message.why_withheld}"
    if canonical_ip(facts.node_ip) not in map(canonical_ip, message.addresses):
        found = ", ".join(message.addresses) or "none that counts"
        return f"the machine was reached at {facts.node_ip}, but the addresses of {provider_id} are {found}"
    if not node.spec.provider_id and message.asked_at < facts.queried_at:
        return f"no answer about {provider_id} since the machine was last reached"
    return ""


def _await(node: Node, facts: MachineFacts, why: str) -> MachineFacts:
    if node.spec.provider_id:
        return facts  # the Node keeps the providerID that it has
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
