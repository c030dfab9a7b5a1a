"""Machines that name an instance of a cloud, for tests of the metadata that an account supplies."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from libs.common.contract.events import InstanceMetadata
from libs.common.contract.machine import AddressStatus, MachineFacts, SystemInformation
from tests.builders import NOW, STREAM_ID, make_facts

PUBLIC_IP = "192.0.2.5"


class NamedCloud(msgspec.Struct, frozen=True, kw_only=True):
    """A cloud whose machines name their instance: the ids of two instances, and what SMBIOS has of one."""

    provider: str
    prefix: str  # of a providerID, before the id
    own: str
    neighbour: str
    make_system: Callable[[str], SystemInformation]
    labels: Mapping[str, str] = {}  # further ones of the native controller

    @property
    def provider_id(self) -> str:
        """That of the own instance."""
        return self.prefix + self.own

    @property
    def neighbours_provider_id(self) -> str:
        return self.prefix + self.neighbour

    def make_facts(self, instance_id: str = "", *, node_ip: str = PUBLIC_IP, **fields: Any) -> MachineFacts:
        """Facts of a machine on the platform metal that names the instance and answered at `node_ip`."""
        addresses = (AddressStatus(address=f"{node_ip}/24", link="eth0", flags=128),)
        facts = make_facts(node_ip=node_ip, addresses=addresses, **fields)
        return msgspec.structs.replace(facts, system=self.make_system(instance_id or self.own))

    def make_metadata(self, **fields: Any) -> InstanceMetadata:
        """What account prod knows of the own instance, which is that of web-1."""
        return make_instance_metadata(**({"provider_id": self.provider_id} | fields))


HCLOUD: Final = NamedCloud(
    provider="hcloud",
    prefix="hcloud://",
    own="4711",
    neighbour="4712",
    make_system=lambda server: SystemInformation(manufacturer="Hetzner", serial_number=server),
    labels={"instance.hetzner.cloud/provided-by": "cloud"},
)
OPENSTACK: Final = NamedCloud(
    provider="openstack",
    prefix="openstack:///",
    own="0c1e4a52-6c7b-4a2e-9d52-1f0e6a5c7b11",
    neighbour="5f1b8e0d-93a4-4c67-b2d8-7e4a90c3d615",
    make_system=lambda server: SystemInformation(
        manufacturer="OpenStack Foundation", product_name="OpenStack Nova", uuid=server
    ),
)
NAMED_CLOUDS: Final = {cloud.provider: cloud for cloud in (HCLOUD, OPENSTACK)}


def make_instance_metadata(provider_id: str = HCLOUD.provider_id, **fields: Any) -> InstanceMetadata:
    """What account prod knows of the instance of web-1; keywords: the fields that differ."""
    known: dict[str, Any] = {
        "stream_id": STREAM_ID, "account": "prod", "name": "web-1", "node_uid": "uid-1",
        "provider_id": provider_id, "asked_at": NOW + timedelta(seconds=1),
        "answered_at": NOW + timedelta(seconds=2), "credential_loaded_at": NOW, "region": "fsn1",
        "zone": "fsn1-dc14", "instance_type": "cx22", "addresses": (PUBLIC_IP, "10.0.0.5"),
    }  # fmt: skip
    return InstanceMetadata(**(known | fields))
