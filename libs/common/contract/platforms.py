"""The one table of platforms: what Talos reports on each. Services and docs read it.

A machine of each, for samples and simulated machines: `libs/testbed/platform_examples.py`.

Source: internal/app/machined/pkg/runtime/v1alpha1/platform/* of Talos 1.13; alibabacloud is newer.
`make render-samples` writes the generated files again.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

OUR_SCHEME: Final = "talos"  # written to existing Nodes, immutable: a new scheme would make them look unknown


def parse_scheme(provider_id: str) -> str:
    """Return the scheme before "://"; "" if the providerID has none."""
    scheme, separator, _ = provider_id.partition("://")
    return scheme if separator else ""


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """One platform, by the name that PlatformMetadata has."""

    # As Talos reports it, with placeholders: {id} of the instance, {name} of the machine, {region}, {zone},
    # {uuid}, {group} (resource group on azure) and {project} (project on gcp). "" = none, "{provider-id}" =
    # the user's choice.
    provider_id: str = ""
    # Controllers of the platform write it in other upper and lower case than Talos: providerIDs that differ
    # only in it name the same machine.
    ignores_provider_id_case: bool = False
    # Controllers of the platform also write and accept the ID without its scheme.
    is_scheme_optional: bool = False
    # Source of public addresses, as in the reference: the pseudo-link "external", where Talos puts those of
    # the cloud's metadata, or the machine's own links.
    public_addresses: Literal["external", "links"] = "external"

    @property
    def scheme(self) -> str:
        """Return the scheme in the providerIDs of its Nodes; "" if they have none."""
        is_known = self.provider_id and self.provider_id != CONFIGURED_PROVIDER_ID
        return parse_scheme(self.provider_id) if is_known else OUR_SCHEME


CONFIGURED_PROVIDER_ID: Final = "{provider-id}"
_AZURE_PROVIDER_ID: Final = (
    "azure:///subscriptions/{uuid}/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachines/{name}"
)

# A new row goes last: sample machines are numbered in this order.
PLATFORMS: Final[Mapping[str, Platform]] = {
    "akamai": Platform(provider_id="linode://{id}"),
    "aws": Platform(provider_id="aws:///{zone}/{id}"),
    "azure": Platform(provider_id=_AZURE_PROVIDER_ID, ignores_provider_id_case=True),
    "cloudstack": Platform(provider_id="cloudstack://{id}"),
    "container": Platform(),
    "digital-ocean": Platform(provider_id="digitalocean://{id}"),
    "equinixMetal": Platform(provider_id="equinixmetal://{id}"),
    "exoscale": Platform(provider_id="exoscale://{id}"),
    "gcp": Platform(provider_id="gce://{project}/{zone}/{name}"),
    "hcloud": Platform(provider_id="hcloud://{id}"),
    "metal": Platform(public_addresses="links"),
    "nocloud": Platform(provider_id=CONFIGURED_PROVIDER_ID, public_addresses="links"),
    "opennebula": Platform(),
    "openstack": Platform(provider_id="openstack:///{id}", public_addresses="links"),
    "oracle": Platform(provider_id="oci://{id}", is_scheme_optional=True, public_addresses="links"),
    "scaleway": Platform(provider_id="scaleway://instance/{zone}/{id}"),
    "upcloud": Platform(provider_id="upcloud://{id}"),
    "vmware": Platform(),
    "vultr": Platform(provider_id="vultr://{id}"),
    "alibabacloud": Platform(provider_id="{region}.{id}"),
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
# providerID schemes of the table; Nodes with them belong to the controllers of these platforms.
NATIVE_SCHEMES: Final = frozenset(each.scheme for each in PLATFORMS.values()) - {OUR_SCHEME, ""}
