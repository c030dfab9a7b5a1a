"""Both simulations of a machine agree, and requests to Talos have the known bytes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import msgspec
import pytest

from libs.common.contract.platforms import PLATFORMS
from libs.talos import resources
from libs.talos.proto.generated import WatchOptions, WatchRequest
from libs.testbed import machine_facts as facts
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.sim_machines.resources import build_resources
from tests.contract.cosi_wire import Cosi, connected, decode, resource_id, spec

NODE = "10.30.0.1"
_TIMES = {7, 8}  # created, updated
_TAGS = 11  # of PlatformMetadata: a map, which Go writes in any order


class Side(NamedTuple):
    machines: MachineFleet
    cosi: Cosi


@pytest.fixture(scope="module")
async def sides(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Side, Side]]:
    async with AsyncExitStack() as stack:
        both = []
        for name, start in (("go", MachineFleet.start), ("python", MachineFleet.start_simulated)):
            machines = await stack.enter_async_context(start(tmp_path_factory.mktemp(name)))
            cosi = await stack.enter_async_context(connected(machines.endpoints[0], machines.pki))
            both.append(Side(machines, cosi))
        yield both[0], both[1]


def a_talkative(platform: str) -> facts.SimMachineFacts:
    """A machine with every kind of resource that the platform makes possible."""
    machine = facts.make_machine(
        "web-1",
        NODE,
        ip6="fd00:30::1",
        platform=platform,
        external_ips=["203.0.113.7", "2001:db8::7"],
        tags={"role": "web", "empty": "", "team": "blue"},
        spot=True,
        control_plane=True,
        domainname="example.org",
        extensions=(
            facts.Extension(name="schematic", version="376567"),
            facts.Extension(name="odd", version=""),
        ),
        processors=(
            facts.Processor(),
            facts.Processor(socket="CPU 1", product_name="", boot_speed=0, core_count=0),
        ),
        memory_modules=(facts.MemoryModule(), facts.MemoryModule(locator="DIMM 1", size=0, manufacturer="")),
        routes=(
            facts.Route(gateway="10.30.0.254"),
            facts.Route(destination="10.30.0.0/24", priority=0),
            facts.Route(gateway="fe80::1%eth0", ipv6=True),
            facts.Route(gateway="fd00:30::ff", destination="2001:db8:1::/48", ipv6=True),
            facts.Route(destination="10.30.0.1/32", table="local", priority=0),
        ),
    )
    odd = (
        facts.Address(address="198.51.100.9/32", namespace="cluster"),
        facts.Address(address="FE80:0::1/64", scope="link", flags=0x281),
        facts.Address(address="10.9.8.7/0", link="tun0", link_index=300, scope="nowhere", flags=0),
    )
    other = facts.make_machine("web-2", "10.30.0.2", talos_version="")
    members = (
        facts.make_member(machine),
        facts.make_member(other),
        facts.Member(name="bare", operating_system=""),
    )
    return msgspec.structs.replace(machine, addresses=(*machine.addresses, *odd), members=members)


def comparable(resource: bytes) -> tuple[Any, Any]:
    """Metadata without times, and the spec; tombstones have an empty one."""
    fields = decode(resource)
    metadata = {number: value for number, value in decode(fields[1][0]).items() if number not in _TIMES}
    said = decode(spec(resource))
    if metadata[2] == [b"PlatformMetadatas.talos.dev"] and _TAGS in said:
        return metadata, said | {_TAGS: sorted(said[_TAGS])}
    return metadata, spec(resource)


@pytest.mark.parametrize("platform", sorted(PLATFORMS))
async def test_they_hold_the_same_resources(sides: tuple[Side, Side], platform: str):
    machine = a_talkative(platform)
    kinds = sorted({(each.namespace, each.type) for each in build_resources(machine)})
    said = []
    for side in sides:
        await side.machines.put_machines(machine)
        said.append({kind: list(map(comparable, await side.cosi.list(NODE, *kind))) for kind in kinds})
        await side.machines.delete_machines(machine.id)
    assert all(said[0].values())
    assert said[0] == said[1]


EVENTS_BY_KIND = {
    "network/AddressStatuses.net.talos.dev": 20,
    "runtime/PlatformMetadatas.talos.dev": 5,
    "k8s/Nodenames.kubernetes.talos.dev": 5,
    "runtime/MachineStatuses.runtime.talos.dev": 5,
    "cluster/Members.cluster.talos.dev": 6,
}


@pytest.mark.parametrize(("resource", "events"), EVENTS_BY_KIND.items())
async def test_their_watches_tell_the_same_history(sides: tuple[Side, Side], resource: str, events: int):
    namespace, kind = resource.split("/")
    machine = a_talkative("aws")
    told = []
    for side in sides:
        await side.machines.put_machines(machine)
        async with side.cosi.watch(NODE, namespace, kind) as watch:
            await live_through_a_lot(side.machines, machine)
            told.append(by_id([await watch.event() for _ in range(events)]))
        await side.machines.delete_machines(machine.id)
    assert told[0] == told[1]


async def live_through_a_lot(machines: MachineFleet, machine: facts.SimMachineFacts) -> None:
    await machines.change_machine(machine.id, name="web-2", addresses=machine.addresses[:2])
    await machines.change_machine(machine.id, platform=facts.make_machine(platform="hcloud").platform)
    await machines.change_machine(machine.id, stage="shutting down", members=machine.members[1:])
    await machines.change_machine(
        machine.id, addresses=machine.addresses[1:3], platform=None, name="", stage=""
    )
    await machines.put_machines(machine)


def by_id(events: list[tuple[int, bytes, bytes]]) -> dict[str, list[Any]]:
    """The history of each resource; Go reports several deletions at once in any order."""
    told: dict[str, list[Any]] = {}
    for kind, new, old in events:
        told.setdefault(resource_id(new), []).append((kind, comparable(new), old and comparable(old)))
    return told


# ---- requests


EVERYTHING = (
    resources.PLATFORM_METADATA,
    resources.SYSTEM_INFORMATION,
    resources.ADDRESSES,
    resources.NODENAME,
    resources.CLUSTER_INFO,
    resources.CONTROLLER_MANAGER,
    resources.MACHINE_STATUS,
    resources.MEMBERS,
)
ALL_ADDRESSES = resources.ResourceRef(
    step="", metric_label="", namespace=resources.ADDRESSES.namespace, type=resources.ADDRESSES.type
)


def test_a_get_request_is_what_talos_own_client_sends():
    assert resources.PLATFORM_METADATA.get().hex() == (
        "0a0772756e74696d65121b506c6174666f726d4d65746164617461732e74616c6f732e646576"
        "1a10706c6174666f726d6d657461646174612200"
    )


def test_a_list_request_carries_options_even_when_they_are_empty():
    assert ALL_ADDRESSES.list().hex() == (
        "0a076e6574776f726b121d4164647265737353746174757365732e6e65742e74616c6f732e6465761a00"
    )


def test_a_watch_request_with_options_is_the_known_bytes():
    request = WatchRequest(
        namespace="network",
        type="AddressStatuses.net.talos.dev",
        options=WatchOptions(bootstrap_contents=True),
        api_version=1,
    )
    assert bytes(request).hex() == (
        "0a076e6574776f726b121d4164647265737353746174757365732e6e65742e74616c6f732e646576220208012801"
    )


@pytest.mark.parametrize("asked", EVERYTHING, ids=lambda asked: asked.step)
def test_every_watch_request_has_options_and_version_1(asked: resources.ResourceRef):
    """Talos 1.12 and older panic without options, and keep ERRORED events to themselves with version 0."""
    request = WatchRequest.parse(asked.watch())
    assert request.options is not None
    assert b"\x22" in asked.watch()  # field 4 is on the wire even if it is empty
    assert request.api_version == 1
    assert request.id == (asked.id or None)  # presence makes it a watch on one resource


def test_what_is_watched_is_what_decides_about_a_node():
    assert [asked.step for asked in resources.WATCHED_RESOURCES] == [
        "PlatformMetadata",
        "AddressStatus",
        "Nodename",
    ]


@pytest.mark.parametrize(
    ("identifier", "asked_for"),
    [
        ("eth0/10.0.0.5/24", True),
        ("external/203.0.113.7/32", True),
        ("k/10.0.0.5/24", True),
        ("ku/10.0.0.5/24", True),
        ("kub0/10.0.0.5/24", True),
        ("kubespan/fd00::1/128", True),
        ("kube-bridge/10.0.0.5/24", True),
        ("kube-i/10.0.0.5/24", True),
        ("kube-ipvs0/10.96.0.1/32", False),
        ("kube-ipvs0/fd00::1/128", False),
        ("tapkube-ipvs0/10.0.0.5/24", True),
    ],
)
def test_service_addresses_of_ipvs_are_not_asked_for(identifier: str, asked_for: bool):
    """The real thing is Go's RE2 in the server: the integration test of looks asks it."""
    assert (re.search(resources.ADDRESSES.id_regexp, identifier) is not None) == asked_for
