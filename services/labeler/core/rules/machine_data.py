"""Provides the facts of one machine to selectors and templates, without the overrides of rules."""

from functools import cached_property

import msgspec

from libs.common.cloud_config.fact_fields import FIELDS_BY_KEY, SUPPLIED_FIELDS, FactValues, fact_values
from libs.common.contract.instances import build_provider_id
from libs.common.contract.machine import Inventory, MachineFacts
from libs.common.contract.system_uuid import is_placeholder_uuid
from libs.gotemplate import Record, record
from libs.gotemplate.values import MAX_INT


class MachineData:
    """The facts of one machine, read once for all rules."""

    def __init__(self, facts: MachineFacts) -> None:
        self.fields: FactValues = fact_values(_match_reference_view(facts))
        # Why a cloud account supplies nothing now, and the fields that it may have supplied before.
        self.why_awaited = facts.supplement.why_awaited if facts.supplement is not None else ""
        supplied = SUPPLIED_FIELDS if self.why_awaited else ()
        self.awaited_fields = [name for name in supplied if not FIELDS_BY_KEY[name.lower()].read(facts)]

    @cached_property
    def record(self) -> Record:
        """The data for templates, built when the first template is rendered.

        A template that reads an awaited field of a variable fails, so its key stays unchanged, too.
        """
        values = self.fields.values
        return record("Machine", {name: values[name] for name in values if name not in self.awaited_fields})

    @cached_property
    def placeholder_uuid(self) -> str:
        """The UUID of its SMBIOS if it identifies no machine, else ""."""
        uuid = self.fields.values.get("UUID", "")
        return uuid if isinstance(uuid, str) and is_placeholder_uuid(uuid) else ""

    @cached_property
    def identity_record(self) -> Record:
        """The data for templates of a providerID, in which a placeholder UUID is empty."""
        if not self.placeholder_uuid:
            return self.record
        return record("Machine", {**self.fields.values, "UUID": ""})


def _match_reference_view(facts: MachineFacts) -> MachineFacts:
    """Return the facts with a hostname and a providerID even if the platform has none.

    Like the reference controller: rules for metal select by them.
    """
    reported = facts.platform
    platform = msgspec.structs.replace(
        reported,
        hostname=reported.hostname or facts.node_name,
        provider_id=build_provider_id(reported, facts.node_ip),
    )
    inventory = None if facts.inventory is None else _clamp_numbers(facts.inventory)
    return msgspec.structs.replace(facts, platform=platform, inventory=inventory)


def _clamp_numbers(inventory: Inventory) -> Inventory:
    """Return the inventory with numbers in the range of Go's int; a response could contain any number."""
    cpu = inventory.processors
    processors = None
    if cpu is not None:
        sockets, cores, threads = map(_clamp_to_go_int, (cpu.sockets, cpu.cores, cpu.threads))
        processors = msgspec.structs.replace(cpu, sockets=sockets, cores=cores, threads=threads)
    memory = None if inventory.memory_mib is None else _clamp_to_go_int(inventory.memory_mib)
    return msgspec.structs.replace(inventory, processors=processors, memory_mib=memory)


def _clamp_to_go_int(number: int) -> int:
    return max(-MAX_INT, min(number, MAX_INT))
