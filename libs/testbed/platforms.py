"""Values of an example machine on each platform; their forms are in libs.common.platforms."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from libs.common.platforms import CONFIGURED_PROVIDER_ID, PLATFORMS


class Example(msgspec.Struct, frozen=True):
    """One platform's values. Forms see zone, region, id, uuid and name; an empty one stays empty."""

    instance_id: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    provider_id: str = ""  # where it is the user's choice


_NUMBER, _UUID = "{number}", "{uuid}"
_GROUP = _PROJECT = "testbed"

EXAMPLES: Mapping[str, Example] = {
    "akamai": Example(_NUMBER, "de-fra-2", "", "g6-standard-2"),
    "alibabacloud": Example("i-{hex}", "cn-hangzhou", "cn-hangzhou-i", "ecs.g6.large"),
    "aws": Example("i-{hex}", "us-east-1", "us-east-1a", "m5.large"),
    "azure": Example(
        "/subscriptions/{uuid}/resourceGroups/testbed/providers/Microsoft.Compute/virtualMachines/{name}",
        "westeurope",
        "1",
        "Standard_D2s_v3",
    ),
    "cloudstack": Example(_UUID, "region1", "zone1", "small"),
    "container": Example(instance_type="2CPU-4RAM"),
    "digital-ocean": Example(_NUMBER, "fra1"),
    "equinixMetal": Example(_UUID, "fr", "fr2", "c3.small"),
    "exoscale": Example(_UUID, "de-fra-1", "de-fra-1", "medium"),
    "gcp": Example(_NUMBER, "europe-west3", "europe-west3-a", "e2-medium"),
    "hcloud": Example(_NUMBER, "eu-central", "fsn1-dc14"),
    "metal": Example(_UUID),
    "nocloud": Example(_NUMBER, "region-1", "pve-1", "2VCPU-4GB", "proxmox://region-1/{id}"),
    "opennebula": Example(_NUMBER),
    "openstack": Example(_UUID, "", "nova", "m1.medium"),
    "oracle": Example(
        "ocid1.instance.oc1.eu-frankfurt-1.{hex}", "eu-frankfurt-1", "FAD-1", "VM.Standard.E4.Flex"
    ),
    "scaleway": Example(_UUID, "fr-par", "fr-par-1", "DEV1-M"),
    "upcloud": Example(_UUID, "", "de-fra1"),
    "vmware": Example(_UUID),
    "vultr": Example(_UUID, "fra"),
}


def provider_id_of(platform: str, **values: str) -> str:
    """What Talos reports for a machine with these values."""
    form = PLATFORMS[platform].provider_id
    form = EXAMPLES[platform].provider_id if form == CONFIGURED_PROVIDER_ID else form
    return form.format(group=_GROUP, project=_PROJECT, **values)
