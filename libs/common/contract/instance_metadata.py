"""Which instance of a cloud a machine names, where Talos itself does not know the cloud of its server."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from libs.common.contract.machine import MachineFacts, SystemInformation
from libs.common.contract.system_uuid import is_placeholder_uuid

_PLATFORMS: Final = frozenset({"nocloud", "metal"})
_HETZNER_SERIAL: Final = re.compile(r"[1-9][0-9]{0,18}")
# By these names cloud-init recognizes machines of Nova, too. Their manufacturer is whoever distributes Nova.
_NOVA_PRODUCTS: Final = frozenset({"OpenStack Nova", "OpenStack Compute"})
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class MetadataProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A cloud whose accounts can supply the metadata of its machines."""

    find_provider_id: Callable[[SystemInformation], str]  # of the instance that a machine names; "" if none
    labels: Mapping[str, str] = {}  # further ones that the cloud's own controller writes


class MetadataAccount(msgspec.Struct, frozen=True, kw_only=True):
    """A cloud account that supplies the metadata of machines."""

    provider: str
    network: str = ""  # the private network in which machines are reached; "" if it is none


def _find_hetzner_id(system: SystemInformation) -> str:
    is_server = system.manufacturer == "Hetzner" and _HETZNER_SERIAL.fullmatch(system.serial_number)
    return f"hcloud://{system.serial_number}" if is_server else ""


def _find_openstack_id(system: SystemInformation) -> str:
    """Return the providerID without a region, as Talos itself reports it on the platform openstack."""
    uuid = system.uuid.lower()
    is_server = system.product_name in _NOVA_PRODUCTS and _UUID.fullmatch(uuid)
    return f"openstack:///{uuid}" if is_server and not is_placeholder_uuid(uuid) else ""


METADATA_PROVIDERS: Final[Mapping[str, MetadataProvider]] = {
    "hcloud": MetadataProvider(
        find_provider_id=_find_hetzner_id, labels={"instance.hetzner.cloud/provided-by": "cloud"}
    ),
    "openstack": MetadataProvider(find_provider_id=_find_openstack_id),
}


def lacks_cloud(facts: MachineFacts) -> bool:
    """Return whether the machine may be a server of a cloud that Talos does not know."""
    return facts.platform.platform in _PLATFORMS and not facts.platform.provider_id


def find_named_instance(provider: str, facts: MachineFacts) -> str:
    """Return the providerID of the instance of that cloud which the machine names; "" if it names none.

    Whoever controls a machine chooses what it names, so this is no proof.
    """
    if facts.system is None or not lacks_cloud(facts):
        return ""
    return METADATA_PROVIDERS[provider].find_provider_id(facts.system)


def parse_metadata_accounts(values: Iterable[str]) -> dict[str, MetadataAccount]:
    """Return the accounts by name, from `provider/account` or `provider/account/network`.

    Raises ValueError for any other text.
    """
    found: dict[str, MetadataAccount] = {}
    for value in values:
        provider, _, rest = value.partition("/")
        account, slash, network = rest.partition("/")
        is_complete = account and bool(network) == bool(slash)
        if provider not in METADATA_PROVIDERS or not is_complete or account in found:
            known = ", ".join(METADATA_PROVIDERS)
            raise ValueError(
                f"{value!r} is not provider/account or provider/account/network with a provider of {known}, "
                "and each account once"
            )
        found[account] = MetadataAccount(provider=provider, network=network)
    return found
