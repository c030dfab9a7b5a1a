"""What a machine of each platform says, and the Node that follows: for unit tests and the real API server."""

from typing import Any

import msgspec

from libs.common.contract.machine import AddressStatus, MachineFacts, PlatformMetadata
from tests.builders import make_facts

_BUILT_IN = "node.cloudprovider.kubernetes.io"


class PlatformCase(msgspec.Struct, frozen=True, kw_only=True):
    """A platform's own metadata, and what labels and providerID they make."""

    platform: str
    metadata: PlatformMetadata
    expected_provider_id: str

    def facts(self, node_name: str = "web-1", node_ip: str = "10.0.0.5") -> MachineFacts:
        """All that a machine there says of itself."""
        return make_facts(
            node_name=node_name,
            node_ip=node_ip,
            addresses=(AddressStatus(address=f"{node_ip}/24", link="eth0", flags=128),),
            **msgspec.structs.asdict(self.metadata),
        )

    def expected_labels(self, cluster_name: str = "") -> dict[str, str]:
        """The built-in labels, each only if its value is not empty."""
        told = {
            f"{_BUILT_IN}/platform": self.platform,
            f"{_BUILT_IN}/lifecycle": "spot" if self.metadata.spot else "",
            f"{_BUILT_IN}/clustername": cluster_name,
            "node.kubernetes.io/instance-type": self.metadata.instance_type,
            "beta.kubernetes.io/instance-type": self.metadata.instance_type,
            "topology.kubernetes.io/zone": self.metadata.zone,
            "failure-domain.beta.kubernetes.io/zone": self.metadata.zone,
            "topology.kubernetes.io/region": self.metadata.region,
            "failure-domain.beta.kubernetes.io/region": self.metadata.region,
        }
        return {key: value for key, value in told.items() if value}


_RESOURCE = "subscriptions/s-1/resourceGroups/{}/providers/Microsoft.Compute/virtualMachines/web-1"


def _case(platform: str, provider_id: str = "", wanted: str = "", **fields: str | bool) -> PlatformCase:
    told: dict[str, Any] = {"instance_id": "id-1", "provider_id": provider_id} | fields
    return PlatformCase(
        platform=platform,
        metadata=PlatformMetadata(platform=platform, **told),
        expected_provider_id=wanted or provider_id or f"talos://{platform}/10.0.0.5",
    )


PLATFORMS = (
    _case("akamai", "linode://12", region="de-fra-2", instance_type="g6-standard-2"),
    _case(
        "alibabacloud",
        "cn-hangzhou.i-1",
        region="cn-hangzhou",
        zone="cn-hangzhou-a",
        instance_type="ecs.g6.large",
    ),
    _case(
        "aws",
        "aws:///us-east-1a/i-0a1b",
        region="us-east-1",
        zone="us-east-1a",
        instance_type="m5.large",
        spot=True,
        hostname="ip-10-0-0-5.ec2.internal",
    ),
    _case(
        "azure",
        f"azure:///{_RESOURCE.format('My-RG')}",
        f"azure:///{_RESOURCE.format('my-rg')}",
        region="westeurope",
        zone="westeurope-1",
        instance_type="Standard_D2s_v3",
        spot=True,
    ),
    _case("cloudstack", "cloudstack://u-1", region="region1", zone="zone1", instance_type="small"),
    _case("container", instance_type="2CPU-4RAM", instance_id=""),
    _case("digital-ocean", "digitalocean://77", region="fra1"),
    _case("equinixMetal", "equinixmetal://u-1", region="fr", zone="fr2", instance_type="c3.small.x86"),
    _case("exoscale", "exoscale://u-1", region="de-fra-1", zone="de-fra-1", instance_type="medium"),
    _case(
        "gcp",
        "gce://project/europe-west3-a/web-1",
        region="europe-west3",
        zone="europe-west3-a",
        instance_type="e2-medium",
        spot=True,
    ),
    _case("hcloud", "hcloud://4711", region="eu-central", zone="fsn1-dc14"),
    _case("metal"),
    _case("nocloud", "proxmox://cluster-1/100", region="cluster-1", zone="pve-1", instance_type="2VCPU-4GB"),
    _case("opennebula"),
    _case("openstack", "openstack:///u-1", zone="nova", instance_type="m1.medium"),
    _case(
        "oracle",
        "oci://ocid1.instance.oc1.x",
        region="eu-frankfurt-1",
        zone="FAD-1",
        instance_type="VM.Standard.E4.Flex",
    ),
    _case(
        "scaleway",
        "scaleway://instance/fr-par-1/u-1",
        region="fr-par",
        zone="fr-par-1",
        instance_type="DEV1-M",
    ),
    _case("upcloud", "upcloud://u-1", zone="de-fra1"),
    _case("vmware"),
    _case("vultr", "vultr://u-1", region="fra"),
)
