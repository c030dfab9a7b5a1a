"""The facts that selectors and templates may name, and their values for a machine.

Names and spellings of the reference are those of Talos's PlatformMetadataSpec and SystemInformationSpec.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from libs.common.cloud_config.model import NodeSelectorTerm, Pool, Rule
from libs.common.contract.machine import MachineFacts

Value = str | bool | int | Mapping[str, str]
TalosResource = Literal["Version", "MachineType", "ExtensionStatus", "Processor", "MemoryModule"]


class FactField(msgspec.Struct, frozen=True, kw_only=True):
    """One machine fact and its names."""

    name: str  # in templates, Go's spelling
    help: str
    path: tuple[str, ...]  # of attributes and entries, from MachineFacts
    resource: TalosResource | None = None  # the inventory resource to query in addition to every poll
    in_reference: Literal["selectors and templates", "templates", ""] = ""
    is_map: bool = False  # in selectors: <key>.<entry>, the entry in its own letter case

    @property
    def is_system(self) -> bool:
        """Whether it is of SystemInformation, which polls query only for it and for recognition by UUID."""
        return self.path[0] == "system"

    @property
    def is_queried_on_demand(self) -> bool:
        """Whether polls query it only where a rule or a pool names it."""
        return self.resource is not None or self.is_system

    @property
    def key(self) -> str:
        """The name in selectors, in lower case."""
        return self.name.lower()

    def read(self, facts: MachineFacts) -> Value | None:
        """Return the value for that machine; None if it was not queried."""
        value: Any = facts
        for step in self.path:
            if value is None:
                return None
            value = value.get(step, "") if isinstance(value, dict) else getattr(value, step)
        found: Value | None = value
        return found


class FactValues(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one machine."""

    texts: dict[str, str]  # for selectors, without absent facts
    values: dict[str, Value]  # for templates, by Go's names, without facts that were not queried
    unqueried: frozenset[str]  # Go's names of facts that were not queried


def _platform(name: str, attribute: str, help_text: str) -> FactField:
    return FactField(
        name=name, help=help_text, path=("platform", attribute), in_reference="selectors and templates"
    )


def _system(name: str, attribute: str, help_text: str) -> FactField:
    return FactField(
        name=name, help=f"{help_text}, from SMBIOS", path=("system", attribute), in_reference="templates"
    )


def _queried(name: str, resource: TalosResource, help_text: str, *path: str) -> FactField:
    return FactField(name=name, help=help_text, path=("inventory", *path), resource=resource)


def _processors(name: str, attribute: str, help_text: str) -> FactField:
    return _queried(name, "Processor", help_text, "processors", attribute)


FIELDS: Final = (
    _platform("Platform", "platform", "platform, such as metal, hcloud or aws"),
    _platform("Hostname", "hostname", "hostname that the platform gave"),
    _platform("Region", "region", "region"),
    _platform("Zone", "zone", "zone"),
    _platform("InstanceType", "instance_type", "instance type"),
    _platform("InstanceID", "instance_id", "instance id"),
    _platform("ProviderID", "provider_id", "provider id"),
    _platform("Spot", "spot", "whether it is a spot instance: true or false"),
    _platform("InternalDNS", "internal_dns", "internal DNS name"),
    _platform("ExternalDNS", "external_dns", "external DNS name"),
    FactField(
        name="Tags",
        help="tags of the instance by name (Talos 1.10 and later)",
        path=("platform", "tags"),
        in_reference="templates",
        is_map=True,
    ),
    _system("Manufacturer", "manufacturer", "manufacturer of the machine"),
    _system("ProductName", "product_name", "product name of the machine"),
    _system("Version", "version", "version of the machine, not of Talos"),
    _system("SerialNumber", "serial_number", "serial number of the machine"),
    _system("UUID", "uuid", "UUID of the machine"),
    _system("WakeUpType", "wake_up_type", "what woke the machine up"),
    _system("SKUNumber", "sku_number", "SKU number of the machine"),
    FactField(name="NodeName", help="name of its Node, according to Talos", path=("node_name",)),
    _queried(
        "TalosVersion", "Version", "version of Talos, such as v1.13.9 (1.10 and later)", "talos_version"
    ),
    _queried("MachineType", "MachineType", "controlplane or worker", "machine_type"),
    _queried("Schematic", "ExtensionStatus", "schematic id of the Image Factory", "extensions", "schematic"),
    FactField(
        name="Extensions",
        help="versions of system extensions by name",
        path=("inventory", "extensions"),
        resource="ExtensionStatus",
        is_map=True,
    ),
    _processors("CPUManufacturer", "manufacturer", "manufacturer of the first processor"),
    _processors("CPUModel", "model", "model of the first processor"),
    _processors("CPUSockets", "sockets", "processor sockets in use"),
    _processors("CPUCores", "cores", "processor cores, all sockets together"),
    _processors("CPUThreads", "threads", "processor threads, all sockets together"),
    _queried("MemoryMiB", "MemoryModule", "memory in MiB, all modules together", "memory_mib"),
)
FIELDS_BY_KEY: Final = {field.key: field for field in FIELDS}
# Go's names of the fields that a cloud account may supply, where Talos does not know the cloud.
SUPPLIED_FIELDS: Final = ("ProviderID", "Region", "Zone", "InstanceType")
# Fields that rules may override under platformMetadata: key in lower case -> field of PlatformMetadata.
OVERRIDABLE: Final = {
    field.key: field.path[1]
    for field in FIELDS
    if field.path[0] == "platform" and field.name not in ("Platform", "Hostname", "Tags")
}


def canonical_key(key: str) -> str:
    """Return a selector's key as in `FactValues.texts`: lower case except for the entry of a map."""
    head, dot, entry = key.partition(".")
    field = FIELDS_BY_KEY.get(head.lower())
    return f"{head.lower()}.{entry}" if dot and field is not None and field.is_map else key.lower()


def find_field(key: str) -> FactField | None:
    """Return the field of a canonical selector key, None if there is none."""
    head, dot, entry = key.partition(".")
    field = FIELDS_BY_KEY.get(head)
    return field if field is not None and field.is_map == bool(dot) and bool(entry) == bool(dot) else None


def fact_values(facts: MachineFacts) -> FactValues:
    """Return the values of all fields for this machine, for selectors and templates."""
    texts: dict[str, str] = {}
    values: dict[str, Value] = {}
    unqueried = set()
    for field in FIELDS:
        value = field.read(facts)
        if value is None:
            unqueried.add(field.name)
            continue
        values[field.name] = value
        if isinstance(value, Mapping):
            texts.update({f"{field.key}.{entry}": text for entry, text in value.items()})
        elif value or value is False:
            texts[field.key] = str(value).lower() if isinstance(value, bool) else str(value)
    return FactValues(texts=texts, values=values, unqueried=frozenset(unqueried))


# ---- the Talos resources that the rules of a file need in addition to every poll

_BY_NAME: Final = {field.name: field for field in FIELDS if field.is_queried_on_demand}
_NAMED: Final = re.compile(rf"\.({'|'.join(_BY_NAME)})\b")


def list_queried_fields(rule: Rule) -> tuple[FactField, ...]:
    """Return the fields of a rule that need additional resources.

    Any mention in a template counts, even in a text: an unneeded query costs only time.
    """
    found = _fields_in(rule.selector)
    for _, entry in rule.entries():
        if "{{" in entry.template:
            found += [_BY_NAME[name] for name in _NAMED.findall(entry.template)]
    return tuple({field.name: field for field in found}.values())


def required_resources(rules: Iterable[Rule], pools: Iterable[Pool] = ()) -> frozenset[TalosResource]:
    """Return the additional resources that metadata must query to evaluate these rules and pools."""
    return frozenset(field.resource for field in _queried_fields(rules, pools) if field.resource)


def requires_system(rules: Iterable[Rule], pools: Iterable[Pool]) -> bool:
    """Return whether metadata must query SystemInformation to evaluate these rules and pools."""
    return any(field.is_system for field in _queried_fields(rules, pools))


def _queried_fields(rules: Iterable[Rule], pools: Iterable[Pool]) -> Iterator[FactField]:
    for rule in rules:
        yield from list_queried_fields(rule)
    for pool in pools:
        yield from _fields_in(pool.selector)


def _fields_in(selector: Iterable[NodeSelectorTerm]) -> list[FactField]:
    keys = [requirement.key for term in selector for requirement in term.requirements]
    return [field for field in map(find_field, keys) if field is not None and field.is_queried_on_demand]
