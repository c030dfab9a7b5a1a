"""The one table of platforms: what Talos reports on each. Services, samples, tests and docs read it.

Source: internal/app/machined/pkg/runtime/v1alpha1/platform/* of Talos 1.13; alibabacloud is newer.
`make render-samples` writes the generated files again.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

OUR_SCHEME: Final = "talos"  # written to existing Nodes, immutable: a new scheme would make them look unknown
_NUMBER, _UUID = "{number}", "{uuid}"


def parse_scheme(provider_id: str) -> str:
    """Return the scheme before "://"; "" if the providerID has none."""
    scheme, separator, _ = provider_id.partition("://")
    return scheme if separator else ""


class PlatformExample(msgspec.Struct, frozen=True):
    """A machine of the platform, for samples and simulated machines.

    Values are formats with these placeholders: {name} of the machine; {uuid}, {number} and {hex} made from
    the name. "" stays empty. `provider_id`, here and in Platform, also has {id} (the instance ID), {region},
    {zone}, {group} (resource group on azure) and {project} (project on gcp).
    """

    instance_id: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    provider_id: str = ""  # on platforms where the user chooses it
    # Manufacturer and product name in SMBIOS. Many product names are invalid label values.
    smbios: tuple[str, str] = ("QEMU", "Standard PC (Q35 + ICH9, 2009)")


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """One platform, by the name that PlatformMetadata has."""

    example: PlatformExample
    # As Talos reports it, with the placeholders of PlatformExample. "" = none, "{provider-id}" = the user's
    # choice.
    provider_id: str = ""
    # Controllers of the platform write it in other upper and lower case than Talos: providerIDs that differ
    # only in it name the same machine.
    ignores_provider_id_case: bool = False
    # Controllers of the platform also write and accept the ID without its scheme.
    is_scheme_optional: bool = False
    # Source of public addresses, as in the reference: the pseudo-link "external", where Talos puts those of
    # the cloud's metadata, or the machine's own links.
    public_addresses: Literal["external", "links"] = "external"
    reports_addresses: bool = True  # the cloud's metadata can contain public addresses
    has_hostname: bool = True
    has_dns_names: bool = False  # internal and external DNS names
    has_tags: bool = False

    @property
    def scheme(self) -> str:
        """Return the scheme in the providerIDs of its Nodes; "" if they have none."""
        is_known = self.provider_id and self.provider_id != CONFIGURED_PROVIDER_ID
        return parse_scheme(self.provider_id) if is_known else OUR_SCHEME


CONFIGURED_PROVIDER_ID: Final = "{provider-id}"
_AZURE_RESOURCE: Final = (
    "/subscriptions/{uuid}/resourceGroups/%s/providers/Microsoft.Compute/virtualMachines/{name}"
)

# A new row goes last: sample machines are numbered in this order.
PLATFORMS: Final[Mapping[str, Platform]] = {
    "akamai": Platform(
        provider_id="linode://{id}",
        has_tags=True,
        example=PlatformExample(
            _NUMBER, "de-fra-2", "", "g6-standard-2", smbios=("Akamai", "Compute Instance")
        ),
    ),
    "aws": Platform(
        provider_id="aws:///{zone}/{id}",
        has_dns_names=True,
        has_tags=True,
        example=PlatformExample(
            "i-{hex}", "us-east-1", "us-east-1a", "m5.large", smbios=("Amazon EC2", "m5.large")
        ),
    ),
    "azure": Platform(
        provider_id="azure://" + _AZURE_RESOURCE % "{group}",
        ignores_provider_id_case=True,
        example=PlatformExample(
            _AZURE_RESOURCE % "testbed",
            "westeurope",
            "1",
            "Standard_D2s_v3",
            smbios=("Microsoft Corporation", "Virtual Machine"),
        ),
    ),
    "cloudstack": Platform(
        provider_id="cloudstack://{id}",
        example=PlatformExample(
            _UUID,
            "region1",
            "zone1",
            "small",
            smbios=("Apache Software Foundation", "CloudStack KVM Hypervisor"),
        ),
    ),
    "container": Platform(
        reports_addresses=False,
        has_hostname=False,
        example=PlatformExample(instance_type="2CPU-4RAM"),
    ),
    "digital-ocean": Platform(
        provider_id="digitalocean://{id}",
        example=PlatformExample(_NUMBER, "fra1", smbios=("DigitalOcean", "Droplet")),
    ),
    "equinixMetal": Platform(
        provider_id="equinixmetal://{id}",
        example=PlatformExample(_UUID, "fr", "fr2", "c3.small", smbios=("Dell Inc.", "PowerEdge R6515")),
    ),
    "exoscale": Platform(
        provider_id="exoscale://{id}",
        example=PlatformExample(
            _UUID, "de-fra-1", "de-fra-1", "medium", smbios=("Exoscale", "Exoscale Compute Platform")
        ),
    ),
    "gcp": Platform(
        provider_id="gce://{project}/{zone}/{name}",
        has_tags=True,
        example=PlatformExample(
            _NUMBER, "europe-west3", "europe-west3-a", "e2-medium", smbios=("Google", "Google Compute Engine")
        ),
    ),
    "hcloud": Platform(
        provider_id="hcloud://{id}",
        example=PlatformExample(_NUMBER, "eu-central", "fsn1-dc14", smbios=("Hetzner", "vServer")),
    ),
    "metal": Platform(
        public_addresses="links",
        reports_addresses=False,
        has_hostname=False,
        example=PlatformExample(_UUID, smbios=("Dell Inc.", "PowerEdge R650")),
    ),
    "nocloud": Platform(
        provider_id=CONFIGURED_PROVIDER_ID,
        public_addresses="links",
        reports_addresses=False,
        example=PlatformExample(
            _NUMBER,
            "region-1",
            "pve-1",
            "2VCPU-4GB",
            "proxmox://region-1/{id}",
            smbios=("QEMU", "Standard PC (i440FX + PIIX, 1996)"),
        ),
    ),
    "opennebula": Platform(
        reports_addresses=False,
        example=PlatformExample(_NUMBER),
    ),
    "openstack": Platform(
        provider_id="openstack:///{id}",
        public_addresses="links",
        example=PlatformExample(
            _UUID, "", "nova", "m1.medium", smbios=("OpenStack Foundation", "OpenStack Nova")
        ),
    ),
    "oracle": Platform(
        provider_id="oci://{id}",
        is_scheme_optional=True,
        public_addresses="links",
        reports_addresses=False,
        example=PlatformExample(
            "ocid1.instance.oc1.eu-frankfurt-1.{hex}", "eu-frankfurt-1", "FAD-1", "VM.Standard.E4.Flex"
        ),
    ),
    "scaleway": Platform(
        provider_id="scaleway://instance/{zone}/{id}",
        example=PlatformExample(_UUID, "fr-par", "fr-par-1", "DEV1-M", smbios=("Scaleway", "SCW-DEV1-M")),
    ),
    "upcloud": Platform(
        provider_id="upcloud://{id}",
        example=PlatformExample(_UUID, "", "de-fra1", smbios=("UpCloud", "Server")),
    ),
    "vmware": Platform(
        reports_addresses=False,
        example=PlatformExample(_UUID, smbios=("VMware, Inc.", "VMware7,1")),
    ),
    "vultr": Platform(
        provider_id="vultr://{id}",
        example=PlatformExample(_UUID, "fra", smbios=("Vultr", "VC2")),
    ),
    "alibabacloud": Platform(
        provider_id="{region}.{id}",
        has_tags=True,
        example=PlatformExample(
            "i-{hex}",
            "cn-hangzhou",
            "cn-hangzhou-i",
            "ecs.g6.large",
            smbios=("Alibaba Cloud", "Alibaba Cloud ECS"),
        ),
    ),
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
