"""What each platform tells Talos: which of PlatformMetadata it fills, and in which form."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Fills(msgspec.Struct, frozen=True):
    """What a platform tells Talos. Formats see zone, region, id and name; an empty one stays empty."""

    provider_id: str = ""
    instance_id: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    dns: bool = False
    publishes_external_ips: bool = False


_NUMBER, _UUID = "{number}", "{uuid}"

# Talos 1.13, internal/app/machined/pkg/runtime/v1alpha1/platform/*
PLATFORMS: Mapping[str, Fills] = {
    "akamai": Fills("linode://{id}", _NUMBER, "de-fra-2", "", "g6-standard-2", publishes_external_ips=True),
    "aws": Fills(
        "aws:///{zone}/{id}",
        "i-{hex}",
        "us-east-1",
        "us-east-1a",
        "m5.large",
        dns=True,
        publishes_external_ips=True,
    ),
    "azure": Fills(
        "azure:///subscriptions/{uuid}/resourceGroups/testbed/providers/Microsoft.Compute/virtualMachines/{name}",
        "/subscriptions/{uuid}/resourceGroups/testbed/providers/Microsoft.Compute/virtualMachines/{name}",
        "westeurope",
        "1",
        "Standard_D2s_v3",
        publishes_external_ips=True,
    ),
    "cloudstack": Fills("cloudstack://{id}", _UUID, "region1", "zone1", "small", publishes_external_ips=True),
    "container": Fills(instance_type="2CPU-4RAM"),
    "digital-ocean": Fills("digitalocean://{id}", _NUMBER, "fra1", publishes_external_ips=True),
    "equinixMetal": Fills("equinixmetal://{id}", _UUID, "fr", "fr2", "c3.small", publishes_external_ips=True),
    "exoscale": Fills(
        "exoscale://{id}", _UUID, "de-fra-1", "de-fra-1", "medium", publishes_external_ips=True
    ),
    "gcp": Fills(
        "gce://testbed/{zone}/{name}",
        _NUMBER,
        "europe-west3",
        "europe-west3-a",
        "e2-medium",
        publishes_external_ips=True,
    ),
    "hcloud": Fills("hcloud://{id}", _NUMBER, "eu-central", "fsn1-dc14", publishes_external_ips=True),
    "metal": Fills(instance_id=_UUID),
    "nocloud": Fills("proxmox://region-1/{id}", _NUMBER, "region-1", "pve-1", "2VCPU-4GB"),
    "opennebula": Fills(instance_id=_NUMBER),
    "openstack": Fills("openstack:///{id}", _UUID, "", "nova", "m1.medium", publishes_external_ips=True),
    "oracle": Fills(
        "oci://{id}",
        "ocid1.instance.oc1.eu-frankfurt-1.{hex}",
        "eu-frankfurt-1",
        "FAD-1",
        "VM.Standard.E4.Flex",
    ),
    "scaleway": Fills(
        "scaleway://instance/{zone}/{id}", _UUID, "fr-par", "fr-par-1", "DEV1-M", publishes_external_ips=True
    ),
    "upcloud": Fills("upcloud://{id}", _UUID, "", "de-fra1", publishes_external_ips=True),
    "vmware": Fills(instance_id=_UUID),
    "vultr": Fills("vultr://{id}", _UUID, "fra", publishes_external_ips=True),
}
