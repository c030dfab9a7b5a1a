"""What selectors and templates see of one machine: as Talos reported it, whatever earlier rules override."""

from functools import cached_property

import msgspec

from libs.common.cloud_config.fact_fields import FactValues, fact_values
from libs.common.contract.machine import Inventory, MachineFacts
from libs.gotemplate import Record, record
from libs.gotemplate.numbers import MAX_INT
from services.labeler.native_provider_id import build_provider_id


class MachineData:
    """Read once for all rules; what templates need is made when the first of them is rendered."""

    def __init__(self, facts: MachineFacts) -> None:
        self.fields: FactValues = fact_values(_match_reference_view(facts))

    @cached_property
    def record(self) -> Record:
        """The data of templates."""
        return record("Machine", self.fields.values)


def _match_reference_view(facts: MachineFacts) -> MachineFacts:
    """With a hostname and a providerID, whatever the platform says: rules for metal select by them."""
    said = facts.platform
    platform = msgspec.structs.replace(
        said, hostname=said.hostname or facts.node_name, provider_id=build_provider_id(said, facts.node_ip)
    )
    inventory = None if facts.inventory is None else _clamp_numbers(facts.inventory)
    return msgspec.structs.replace(facts, platform=platform, inventory=inventory)


def _clamp_numbers(inventory: Inventory) -> Inventory:
    """With numbers that are Go's int: on the wire they could be anything."""
    cpu = inventory.processors
    processors = None
    if cpu is not None:
        sockets, cores, threads = map(_clamp_to_go_int, (cpu.sockets, cpu.cores, cpu.threads))
        processors = msgspec.structs.replace(cpu, sockets=sockets, cores=cores, threads=threads)
    memory = None if inventory.memory_mib is None else _clamp_to_go_int(inventory.memory_mib)
    return msgspec.structs.replace(inventory, processors=processors, memory_mib=memory)


def _clamp_to_go_int(number: int) -> int:
    return max(-MAX_INT, min(number, MAX_INT))
