"""Machines that name an instance of Hetzner Cloud, for tests of the metadata that an account supplies."""

from typing import Any

import msgspec

from libs.common.contract.machine import AddressStatus, MachineFacts, SystemInformation
from tests.builders import make_facts

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
