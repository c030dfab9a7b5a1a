"""Which instance of a cloud a machine names, where Talos itself does not know the cloud of its server."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from libs.common.contract.machine import MachineFacts, SystemInformation

_PLATFORMS: Final = frozenset({"nocloud", "metal"})
_HETZNER_SERIAL: Final = re.compile(r"[1-9][0-9]{0,18}")


class MetadataProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A cloud whose accounts can supply the metadata of its machines."""

    find_provider_id: Callable[[SystemInformation], str]  # of the instance that a machine names; "" if none
    labels: Mapping[str, str] = {}  # further ones that the cloud's own controller writes


def _find_hetzner_id(system: SystemInformation) -> str:
    is_server = system.manufacturer == "Hetzner" and _HETZNER_SERIAL.fullmatch(system.serial_number)
    return f"hcloud://{system.serial_number}" if is_server else ""


METADATA_PROVIDERS: Final[Mapping[str, MetadataProvider]] = {
    "hcloud": MetadataProvider(
        find_provider_id=_find_hetzner_id, labels={"instance.hetzner.cloud/provided-by": "cloud"}
    ),
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


def parse_metadata_accounts(values: Iterable[str]) -> dict[str, str]:
    """Return the provider of each account, from `provider/account`. Raises ValueError for any other text."""
    found: dict[str, str] = {}
    for value in values:
        provider, _, account = value.partition("/")
        if provider not in METADATA_PROVIDERS or not account or account in found:
            known = ", ".join(METADATA_PROVIDERS)
            raise ValueError(f"{value!r} is not provider/account with a provider of {known}, and once each")
        found[account] = provider
    return found
