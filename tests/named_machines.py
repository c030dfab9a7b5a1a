"""Machines that name an instance of Hetzner Cloud, for tests of the metadata that an account supplies."""

from datetime import timedelta
from typing import Any

import msgspec

from libs.common.contract.events import InstanceMetadata
from libs.common.contract.machine import AddressStatus, MachineFacts, SystemInformation
from tests.builders import NOW, STREAM_ID, make_facts

PUBLIC_IP = "192.0.2.5"


def make_hetzner_facts(
    serial_number: str, *, manufacturer: str = "Hetzner", node_ip: str = PUBLIC_IP, **fields: Any
) -> MachineFacts:
    """Facts of a machine on the platform metal that metadata reached at `node_ip`."""
    facts = make_facts(
        node_ip=node_ip, addresses=(AddressStatus(address=f"{node_ip}/24", link="eth0", flags=128),), **fields
    )
    system = SystemInformation(manufacturer=manufacturer, serial_number=serial_number)
    return msgspec.structs.replace(facts, system=system)


def make_instance_metadata(provider_id: str = "hcloud://4711", **fields: Any) -> InstanceMetadata:
    """What account prod knows of the instance of web-1; keywords: the fields that differ."""
    known: dict[str, Any] = {
        "stream_id": STREAM_ID, "account": "prod", "name": "web-1", "node_uid": "uid-1",
        "provider_id": provider_id, "asked_at": NOW + timedelta(seconds=1),
        "answered_at": NOW + timedelta(seconds=2), "credential_loaded_at": NOW, "region": "fsn1",
        "zone": "fsn1-dc14", "instance_type": "cx22", "addresses": (PUBLIC_IP, "10.0.0.5"),
    }  # fmt: skip
    return InstanceMetadata(**(known | fields))
