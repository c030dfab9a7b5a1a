"""Bytes made by Talos's and COSI's own Go types (see talos_samples/generate) read as what they mean."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.contract.machine import Inventory, Processors
from libs.talos import machine_reading
from libs.talos.cosi_messages import Resource
from libs.talos.inventory_reading import read_part
from libs.talos.machine_events import WatchErrored, WatchOpening
from libs.talos.proto.strict import InvalidResponse
from libs.talos.resources import (
    ADDRESSES,
    CLUSTER_INFO,
    CONTROLLER_MANAGER,
    INVENTORY,
    NODENAME,
    PLATFORM_METADATA,
    SYSTEM_INFORMATION,
    Part,
    ResourceRef,
)
from libs.talos.validation import parse_resources
from services.metadata.core.inventory_state import get_part
from tests.tables import naming

FOLDER = Path(__file__).parent / "talos_samples"


class Sample(msgspec.Struct):
    name: str
    reads: str
    message: bytes
    want: Any = None
    invalid: bool = False


class _File(msgspec.Struct):
    talos: str
    samples: list[Sample]


class Case(NamedTuple):
    talos: str
    sample: Sample

    def __str__(self) -> str:
        return f"{self.talos}: {self.sample.reads}: {self.sample.name}"


CASES = [
    Case(file.talos, sample)
    for path in sorted(FOLDER.glob("talos-*.json"))
    for file in [msgspec.json.decode(path.read_bytes(), type=_File)]
    for sample in file.samples
]
VALID = [case for case in CASES if not case.sample.invalid]
INVALID = [case for case in CASES if case.sample.invalid]


AN_EMPTY_EVENT = b"\x0a\x00"  # with which a watch on one resource opens


READERS: dict[str, tuple[ResourceRef, Callable[[list[Resource]], Any]]] = {
    "platform": (PLATFORM_METADATA, machine_reading.read_platform),
    "system": (SYSTEM_INFORMATION, machine_reading.read_system),
    "nodename": (NODENAME, machine_reading.read_node_name),
    "cluster_name": (CLUSTER_INFO, machine_reading.read_cluster_name),
    "cluster_networks": (CONTROLLER_MANAGER, machine_reading.read_cluster_networks),
    "address": (ADDRESSES, lambda found: next(iter(machine_reading.read_addresses(found)), None)),
}


def read_inventory(part: Part, messages: Sequence[bytes]) -> Inventory:
    return read_part(part, parse_resources(INVENTORY[part], messages))


def read(reads: str, message: bytes) -> Any:
    if reads in READERS:
        ref, reader = READERS[reads]
        value = reader(parse_resources(ref, [message]))
        return every_field(value) if isinstance(value, msgspec.Struct) else value
    match reads:
        case "Version" | "MachineType" | "ExtensionStatus" | "Processor" | "MemoryModule" | "RouteStatus":
            value = get_part(read_inventory(reads, [message]), reads)
            value = list(value) if isinstance(value, tuple) else value
            return every_field(value) if isinstance(value, msgspec.Struct) else value
        case "watch":
            opening = WatchOpening(NODENAME)
            opening.apply(AN_EMPTY_EVENT)
            try:
                return opening.apply(message)
            except WatchErrored as error:
                return str(error)
    raise AssertionError(f"no reader for {reads}")


def every_field(facts: msgspec.Struct) -> dict[str, Any]:
    """Unlike the JSON form, which leaves defaults out."""
    fields = msgspec.structs.asdict(facts)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


def test_both_generations_of_the_encoder_are_there():
    assert {case.talos for case in CASES} == {"1.11.6", "1.13.5"}
    assert len(VALID) >= 60
    assert len(INVALID) >= 40


def test_what_a_talos_sends_is_read_as_it_means_it():
    for case in VALID:
        with naming(case):
            assert read(case.sample.reads, case.sample.message) == case.sample.want


def test_what_no_talos_would_send_is_refused_with_a_reason():
    for case in INVALID:
        with naming(case):
            with pytest.raises(InvalidResponse) as refused:
                read(case.sample.reads, case.sample.message)
            assert str(refused.value)


ONE_FIELD = [case for case in VALID if case.sample.name != "three at once"]  # that may end after one


def test_a_message_cut_off_anywhere_is_refused():
    for case in ONE_FIELD:
        with naming(case):
            message = case.sample.message
            for length in range(1, len(message)):
                with pytest.raises(InvalidResponse):
                    read(case.sample.reads, message[:length])


@given(data=st.data(), case=st.sampled_from(CASES))
@settings(max_examples=100)
def test_any_mutation_is_read_or_refused_and_nothing_else_happens(data: st.DataObject, case: Case):
    message = bytearray(case.sample.message)
    for _ in range(data.draw(st.integers(1, 8))):
        where = data.draw(st.integers(0, len(message)))
        kind = data.draw(st.sampled_from(["set", "insert", "delete"]))
        if kind == "insert":
            message[where:where] = data.draw(st.binary(min_size=1, max_size=12))
        elif kind == "set" and where < len(message):
            message[where] = data.draw(st.integers(0, 255))
        else:
            del message[where : where + data.draw(st.integers(1, 30))]
    try:
        facts = read(case.sample.reads, bytes(message))
    except InvalidResponse:
        return
    msgspec.json.encode(facts)  # whatever was read can go on a bus


SAMPLE_ADDRESSES = {
    case.sample.name: case.sample.message
    for case in VALID
    if case.talos == "1.13.5" and case.sample.reads == "address"
}


PARTS = {
    (case.sample.reads, case.sample.name): case.sample.message for case in VALID if case.talos == "1.13.5"
}


def test_an_inventory_sums_up_what_is_there():
    epyc, module = PARTS["Processor", "a processor"], PARTS["MemoryModule", "a module"]
    second = epyc.replace(b"CPU-0", b"CPU-1")
    empty = PARTS["Processor", "an empty socket"].replace(b"CPU-0", b"CPU-2")
    read_twice = read_inventory("Processor", [empty, second, epyc]).processors
    assert read_twice == Processors(manufacturer="AMD", model="EPYC 9354P", sockets=2, cores=60, threads=120)
    both = [module, module.replace(b"DIMM-0", b"DIMM-7"), PARTS["MemoryModule", "an empty slot"]]
    assert read_inventory("MemoryModule", both).memory_mib == 65536


def test_a_machine_without_any_is_told_from_one_that_was_not_asked():
    assert read_part("Version", []) == Inventory(talos_version="")
    assert read_part("MachineType", []) == Inventory(machine_type="")
    assert read_part("ExtensionStatus", []) == Inventory(extensions={})
    assert read_part("Processor", []) == Inventory(processors=Processors())
    assert read_part("MemoryModule", []) == Inventory(memory_mib=0)
    assert read_part("RouteStatus", []) == Inventory(gateways=())


@pytest.mark.parametrize("part", ["Processor", "ExtensionStatus", "MemoryModule"])
def test_an_inventory_is_bounded_and_names_nothing_twice(part: Part):
    message = next(message for (reads, _), message in PARTS.items() if reads == part)
    with pytest.raises(InvalidResponse, match="same id"):
        read_inventory(part, [message, message])
    with pytest.raises(InvalidResponse, match="more than 512 of"):
        read_inventory(part, [message] * 513)


def test_gateways_are_sorted_and_told_once_however_many_routes_lead_to_them():
    default, network = PARTS["RouteStatus", "a default route"], PARTS["RouteStatus", "a route to a network"]
    second = default.replace(b"/1024", b"/2048")  # the priority in its id
    of_link = PARTS["RouteStatus", "a default route of a link"]
    assert second != default
    told_twice = read_inventory("RouteStatus", [network, second, of_link, default]).gateways
    assert told_twice == ("10.0.0.1", "2001:db8::ff")


def test_addresses_come_out_by_id_whatever_their_order():
    names = ("scope host", "IPv6", "from cloud metadata", "the default prefix", "IPv4-mapped IPv6")
    messages = [SAMPLE_ADDRESSES[name] for name in names]
    statuses = machine_reading.read_addresses(parse_resources(ADDRESSES, messages))
    assert statuses == machine_reading.read_addresses(parse_resources(ADDRESSES, messages[::-1]))
    found = [f"{status.link}/{status.address}" for status in statuses]
    assert found == sorted(found)
    assert len(found) == len(names)
