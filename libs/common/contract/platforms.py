"""The one table of platforms: what Talos reports on each. Services, samples, tests and docs read it.

Source: internal/app/machined/pkg/runtime/v1alpha1/platform/* of Talos 1.13; alibabacloud is newer.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

OUR_SCHEME: Final = "talos"  # written to existing Nodes, immutable: a new scheme would make them look unknown


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """One platform, by the name that PlatformMetadata has."""

    # As Talos reports it; {id} is the instance ID. "" = none, "{provider-id}" = the user's choice.
    provider_id: str = ""
    # Where the labeler takes public addresses from, as the reference does: from the pseudo-link "external",
    # where Talos puts those that the cloud's metadata name, or from the machine's own links.
    public_addresses: Literal["external", "links"] = "external"
    reports_addresses: bool = True  # whether the cloud's metadata name any
    has_hostname: bool = True
    has_dns_names: bool = False  # internal and external DNS names
    has_tags: bool = False

    @property
    def scheme(self) -> str:
        """What stands before "://" in the providerIDs of its Nodes; "" where they have no scheme."""
        if not self.provider_id or self.provider_id == CONFIGURED_PROVIDER_ID:
            return OUR_SCHEME
        scheme, separator, _ = self.provider_id.partition("://")
        return scheme if separator else ""


CONFIGURED_PROVIDER_ID: Final = "{provider-id}"
_AZURE: Final = (
    "azure:///subscriptions/{uuid}/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachines/{name}"
)

# A new row goes last: sample machines are numbered in this order.
PLATFORMS: Final[Mapping[str, Platform]] = {
    "akamai": Platform(provider_id="linode://{id}", has_tags=True),
    "aws": Platform(provider_id="aws:///{zone}/{id}", has_dns_names=True, has_tags=True),
    "azure": Platform(provider_id=_AZURE),
    "cloudstack": Platform(provider_id="cloudstack://{id}"),
    "container": Platform(reports_addresses=False, has_hostname=False),
    "digital-ocean": Platform(provider_id="digitalocean://{id}"),
    "equinixMetal": Platform(provider_id="equinixmetal://{id}"),
    "exoscale": Platform(provider_id="exoscale://{id}"),
    "gcp": Platform(provider_id="gce://{project}/{zone}/{name}", has_tags=True),
    "hcloud": Platform(provider_id="hcloud://{id}"),
    "metal": Platform(public_addresses="links", reports_addresses=False, has_hostname=False),
    "nocloud": Platform(
        provider_id=CONFIGURED_PROVIDER_ID, public_addresses="links", reports_addresses=False
    ),
    "opennebula": Platform(reports_addresses=False),
    "openstack": Platform(provider_id="openstack:///{id}", public_addresses="links"),
    "oracle": Platform(provider_id="oci://{id}", public_addresses="links", reports_addresses=False),
    "scaleway": Platform(provider_id="scaleway://instance/{zone}/{id}"),
    "upcloud": Platform(provider_id="upcloud://{id}"),
    "vmware": Platform(reports_addresses=False),
    "vultr": Platform(provider_id="vultr://{id}"),
    "alibabacloud": Platform(provider_id="{region}.{id}", has_tags=True),
}

# Platforms whose driver never knows a providerID: the fallback is final from the first query on.
PLATFORMS_WITHOUT_PROVIDER_ID: Final = frozenset(
    name for name, each in PLATFORMS.items() if not each.provider_id
)
# Platforms whose driver always fills in a providerID: while it is empty, the cloud has not answered.
PLATFORMS_WITH_PROVIDER_ID: Final = frozenset(
    name
    for name, each in PLATFORMS.items()
    if name not in PLATFORMS_WITHOUT_PROVIDER_ID and each.provider_id != CONFIGURED_PROVIDER_ID
)
PLATFORMS_WITH_PUBLIC_LINK_ADDRESSES: Final = frozenset(
    name for name, each in PLATFORMS.items() if each.public_addresses == "links"
)
