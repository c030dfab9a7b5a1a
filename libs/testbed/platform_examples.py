"""The values of an example machine on each platform; libs.common.contract.platforms has their formats."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from libs.common.contract.platforms import CONFIGURED_PROVIDER_ID, PLATFORMS


class PlatformExample(msgspec.Struct, frozen=True):
    """The values of one platform; formats can use zone, region, id, uuid and name, "" stays empty."""

    instance_id: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    provider_id: str = ""  # on platforms where the user chooses it


_NUMBER, _UUID = "{number}", "{uuid}"
_GROUP = _PROJECT = "testbed"

EXAMPLES: Mapping[str, PlatformExample] = {
    "akamai": PlatformExample(_NUMBER, "de-fra-2", "", "g6-standard-2"),
    "alibabacloud": PlatformExample("i-{hex}", "cn-hangzhou", "cn-hangzhou-i", "ecs.g6.large"),
    "aws": PlatformExample("i-{hex}", "us-east-1", "us-east-1a", "m5.large"),
    "azure": PlatformExample(
        "/subscriptions/{uuid}/resourceGroups/testbed/providers/Microsoft.Compute/virtualMachines/{name}",
        "westeurope",
        "1",
        "Standard_D2s_v3",
    ),
    "cloudstack": PlatformExample(_UUID, "region1", "zone1", "small"),
    "container": PlatformExample(instance_type="2CPU-4RAM"),
    "digital-ocean": PlatformExample(_NUMBER, "fra1"),
    "equinixMetal": PlatformExample(_UUID, "fr", "fr2", "c3.small"),
    "exoscale": PlatformExample(_UUID, "de-fra-1", "de-fra-1", "medium"),
    "gcp": PlatformExample(_NUMBER, "europe-west3", "europe-west3-a", "e2-medium"),
    "hcloud": PlatformExample(_NUMBER, "eu-central", "fsn1-dc14"),
    "metal": PlatformExample(_UUID),
    "nocloud": PlatformExample(_NUMBER, "region-1", "pve-1", "2VCPU-4GB", "proxmox://region-1/{id}"),
    "opennebula": PlatformExample(_NUMBER),
    "openstack": PlatformExample(_UUID, "", "nova", "m1.medium"),
    "oracle": PlatformExample(
        "ocid1.instance.oc1.eu-frankfurt-1.{hex}", "eu-frankfurt-1", "FAD-1", "VM.Standard.E4.Flex"
    ),
    "scaleway": PlatformExample(_UUID, "fr-par", "fr-par-1", "DEV1-M"),
    "upcloud": PlatformExample(_UUID, "", "de-fra1"),
    "vmware": PlatformExample(_UUID),
    "vultr": PlatformExample(_UUID, "fra"),
}


def build_provider_id(platform: str, **values: str) -> str:
    """Return the providerID that Talos reports for a machine with these values."""
    form = PLATFORMS[platform].provider_id
    form = EXAMPLES[platform].provider_id if form == CONFIGURED_PROVIDER_ID else form
    return form.format(group=_GROUP, project=_PROJECT, **values)
