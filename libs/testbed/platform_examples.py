"""A machine of each platform, for samples and simulated machines: what Talos reports on it."""

from collections.abc import Mapping
from typing import Final

import msgspec


class PlatformExample(msgspec.Struct, frozen=True):
    """A machine of one platform.

    Texts are formats with these placeholders: {name} of the machine; {uuid}, {number} and {hex} made from the
    name. "" stays empty. `provider_id` also has those of the table of platforms.
    """

    instance_id: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    provider_id: str = ""  # on platforms where the user chooses it
    # Manufacturer and product name in SMBIOS. Many product names are invalid label values.
    smbios: tuple[str, str] = ("QEMU", "Standard PC (Q35 + ICH9, 2009)")
    reports_addresses: bool = True  # the cloud's metadata can contain public addresses
    has_hostname: bool = True
    has_dns_names: bool = False  # internal and external DNS names
    has_tags: bool = False


_NUMBER, _UUID = "{number}", "{uuid}"
_AZURE_ID: Final = (
    "/subscriptions/{uuid}/resourceGroups/testbed/providers/Microsoft.Compute/virtualMachines/{name}"
)
# One for each row of `libs.common.contract.platforms.PLATFORMS`.
PLATFORM_EXAMPLES: Final[Mapping[str, PlatformExample]] = {
    "akamai": PlatformExample(
        _NUMBER, "de-fra-2", "", "g6-standard-2", smbios=("Akamai", "Compute Instance"), has_tags=True
    ),
    "aws": PlatformExample(
        "i-{hex}",
        "us-east-1",
        "us-east-1a",
        "m5.large",
        smbios=("Amazon EC2", "m5.large"),
        has_dns_names=True,
        has_tags=True,
    ),
    "azure": PlatformExample(
        _AZURE_ID, "westeurope", "1", "Standard_D2s_v3", smbios=("Microsoft Corporation", "Virtual Machine")
    ),
    "cloudstack": PlatformExample(
        _UUID, "region1", "zone1", "small", smbios=("Apache Software Foundation", "CloudStack KVM Hypervisor")
    ),
    "container": PlatformExample("", "", "", "2CPU-4RAM", reports_addresses=False, has_hostname=False),
    "digital-ocean": PlatformExample(_NUMBER, "fra1", smbios=("DigitalOcean", "Droplet")),
    "equinixMetal": PlatformExample(_UUID, "fr", "fr2", "c3.small", smbios=("Dell Inc.", "PowerEdge R6515")),
    "exoscale": PlatformExample(
        _UUID, "de-fra-1", "de-fra-1", "medium", smbios=("Exoscale", "Exoscale Compute Platform")
    ),
    "gcp": PlatformExample(
        _NUMBER,
        "europe-west3",
        "europe-west3-a",
        "e2-medium",
        smbios=("Google", "Google Compute Engine"),
        has_tags=True,
    ),
    "hcloud": PlatformExample(_NUMBER, "eu-central", "fsn1-dc14", smbios=("Hetzner", "vServer")),
    "metal": PlatformExample(
        _UUID, smbios=("Dell Inc.", "PowerEdge R650"), reports_addresses=False, has_hostname=False
    ),
    "nocloud": PlatformExample(
        _NUMBER,
        "region-1",
        "pve-1",
        "2VCPU-4GB",
        "proxmox://region-1/{id}",
        smbios=("QEMU", "Standard PC (i440FX + PIIX, 1996)"),
        reports_addresses=False,
    ),
    "opennebula": PlatformExample(_NUMBER, reports_addresses=False),
    "openstack": PlatformExample(
        _UUID, "", "nova", "m1.medium", smbios=("OpenStack Foundation", "OpenStack Nova")
    ),
    "oracle": PlatformExample(
        "ocid1.instance.oc1.eu-frankfurt-1.{hex}",
        "eu-frankfurt-1",
        "FAD-1",
        "VM.Standard.E4.Flex",
        reports_addresses=False,
    ),
    "scaleway": PlatformExample(_UUID, "fr-par", "fr-par-1", "DEV1-M", smbios=("Scaleway", "SCW-DEV1-M")),
    "upcloud": PlatformExample(_UUID, "", "de-fra1", smbios=("UpCloud", "Server")),
    "vmware": PlatformExample(_UUID, smbios=("VMware, Inc.", "VMware7,1"), reports_addresses=False),
    "vultr": PlatformExample(_UUID, "fra", smbios=("Vultr", "VC2")),
    "alibabacloud": PlatformExample(
        "i-{hex}",
        "cn-hangzhou",
        "cn-hangzhou-i",
        "ecs.g6.large",
        smbios=("Alibaba Cloud", "Alibaba Cloud ECS"),
        has_tags=True,
    ),
}
