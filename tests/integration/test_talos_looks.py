"""Looks at real COSI servers with Talos's own types."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from libs.common.contract.machine import AddressStatus, MachineFacts, SystemInformation
from libs.talos.api import MachineConfigNetworks, TalosApi
from libs.talos.resources import NODENAME, PLATFORM_METADATA
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.machine_fleet import Address, CallKey, MachineFleet, make_machine
from tests.talos_actors import asking, query_fault

CONTROL_PLANE = make_machine("looks-cp", "10.70.0.1", control_plane=True, cluster_name="testbed")


class Observed(list[tuple[str, bool]]):
    """What the metrics would count: requests and whether they failed."""

    def __call__(self, request: str, seconds: float, failed: bool) -> None:
        assert seconds >= 0
        self.append((request, failed))


@pytest.fixture
def observed() -> Observed:
    return Observed()


@pytest.fixture
async def talos(machines: MachineFleet, tmp_path: Path, observed: Observed) -> AsyncIterator[TalosApi]:
    await machines.put_machines(CONTROL_PLANE)
    config = machines.write_talosconfig(tmp_path / "config")
    async with asking(config, observe=observed, queries_cluster_name=True) as api:
        yield api
    await machines.delete_machines(CONTROL_PLANE.id)


async def test_a_look_gives_everything_a_machine_says(machines: MachineFleet, talos: TalosApi):
    machine = make_machine(
        "looks-1",
        "10.70.1.1",
        ip6="2001:db8:70::1",
        platform="aws",
        external_ips=["203.0.113.70"],
        spot=True,
        tags={"team": "blüe"},
    )
    await machines.put_machines(machine)
    before = datetime.now(UTC)
    facts = await talos.fetch_facts("10.70.1.1", deadline_seconds=HANG_SECONDS)
    assert machine.platform is not None
    assert facts.platform.provider_id == machine.platform.provider_id
    assert facts.platform.tags == {"team": "blüe"}
    assert facts.platform.spot
    assert facts.system is not None
    assert machine.system_information is not None
    assert facts.system.uuid == machine.system_information.uuid
    assert facts.addresses == (
        AddressStatus(address="10.70.1.1/24", link="eth0", flags=128),
        AddressStatus(address="2001:db8:70::1/64", link="eth0", flags=128),
        AddressStatus(address="203.0.113.70/32", link="external"),
        AddressStatus(address="127.0.0.1/8", link="lo", scope=254, flags=128),
    )
    assert facts.node_name == "looks-1"
    assert facts.cluster_name == "testbed"
    assert facts.node_ip == "10.70.1.1"
    assert before <= facts.queried_at <= datetime.now(UTC)


@pytest.mark.parametrize("with_system", [True, False])
async def test_one_look_is_four_calls_or_three_and_the_cluster_is_asked_once(
    machines: MachineFleet, talos: TalosApi, observed: Observed, with_system: bool
):
    await machines.put_machines(make_machine("looks-2", "10.70.1.2"))
    await machines.reset_calls()
    for _ in range(3):
        facts = await talos.fetch_facts("10.70.1.2", deadline_seconds=HANG_SECONDS, with_system=with_system)
    assert (facts.system is not None) == with_system
    calls = await machines.count_calls()
    asked = (
        "PlatformMetadatas",
        *(["SystemInformations"] if with_system else []),
        "AddressStatuses",
        "Nodenames",
    )
    of_machine = {call.type.split(".")[0]: count for call, count in calls.items() if call.node == "10.70.1.2"}
    assert of_machine == dict.fromkeys(asked, 3)
    assert calls[CallKey("", "Get", "Infos.cluster.talos.dev")] == 1
    of_system = [("systeminformation", False)] * 3 if with_system else []
    others = [(name, False) for name in ("platformmetadata", "addresses", "nodename")] * 3
    assert sorted(observed) == sorted([*others, *of_system, ("clusterinfo", False)])


async def test_a_container_has_no_smbios_and_that_is_no_fault(
    machines: MachineFleet, talos: TalosApi, observed: Observed
):
    await machines.put_machines(make_machine("looks-4", "10.70.1.4", platform="container"))
    facts = await talos.fetch_facts("10.70.1.4", deadline_seconds=HANG_SECONDS)
    assert facts.system == SystemInformation()
    assert facts.platform.platform == "container"
    assert ("systeminformation", False) in observed


async def test_a_machine_whose_node_name_is_not_known_yet_has_facts(machines: MachineFleet, talos: TalosApi):
    await machines.put_machines(make_machine("looks-5", "10.70.1.5"))
    await machines.set_faults("looks-5", not_found=[NODENAME.type])
    assert (await talos.fetch_facts("10.70.1.5", deadline_seconds=HANG_SECONDS)).node_name == ""


async def test_a_machine_without_platform_metadata_is_not_found(
    machines: MachineFleet, talos: TalosApi, observed: Observed
):
    await machines.put_machines(make_machine("looks-6", "10.70.1.6"))
    await machines.set_faults("looks-6", not_found=[PLATFORM_METADATA.type])
    fault = await query_fault(talos, "10.70.1.6")
    assert (fault.kind, fault.step) == ("not_found", "PlatformMetadata")
    assert fault.endpoint == f"{machines.endpoints[0]} for 10.70.1.6"
    assert ("platformmetadata", True) in observed


async def test_an_address_where_nobody_listens_is_refused(talos: TalosApi):
    fault = await query_fault(talos, "10.70.1.250")
    assert fault.kind == "refused"
    assert "10.70.1.250:50000: connect: connection refused" in fault.message


async def test_a_machine_that_hangs_ends_at_the_deadline(machines: MachineFleet, talos: TalosApi):
    await machines.put_machines(make_machine("looks-9", "10.70.1.9"))
    await machines.set_faults("looks-9", hang=True)
    begun = asyncio.get_running_loop().time()
    fault = await query_fault(talos, "10.70.1.9", deadline_seconds=3)
    assert asyncio.get_running_loop().time() - begun > 2.9
    assert fault.kind == "timeout"
    assert fault.step in {"PlatformMetadata", "SystemInformation", "AddressStatus", "Nodename"}
    await machines.set_faults("looks-9")


async def test_a_client_certificate_without_the_role_is_a_permission_fault(
    machines: MachineFleet, tmp_path: Path
):
    await machines.put_machines(make_machine("looks-12", "10.70.1.12"))
    async with asking(machines.write_talosconfig(tmp_path / "config", roles=("os:etcd:backup",))) as api:
        assert (await query_fault(api, "10.70.1.12")).kind == "permission"


async def test_what_is_not_an_address_is_never_sent(machines: MachineFleet, talos: TalosApi):
    await machines.reset_calls()
    for text in ("web-1", "10.0.0.1:50000", "", "10.0.0.1\nnodes: 10.0.0.2"):
        assert (await query_fault(talos, text)).kind == "bad_node_ip"
    assert not await machines.count_calls()


async def test_thousands_of_service_addresses_of_ipvs_are_left_out(machines: MachineFleet, talos: TalosApi):
    machine = make_machine("looks-13", "10.70.1.13")
    services = tuple(
        Address(address=f"10.96.{i // 250}.{i % 250 + 1}/32", link="kube-ipvs0", link_index=9)
        for i in range(1500)
    )
    await machines.put_machines(machine)
    await machines.change_machine("looks-13", addresses=(*machine.addresses, *services))
    facts = await talos.fetch_facts("10.70.1.13", deadline_seconds=HANG_SECONDS)
    assert [status.link for status in facts.addresses] == ["eth0", "lo"]


async def test_a_machine_that_floods_its_addresses_is_invalid_and_harms_only_itself(
    machines: MachineFleet, talos: TalosApi
):
    flood = tuple(
        Address(address=f"10.97.{i // 250}.{i % 250 + 1}/32", link="eth1", link_index=9) for i in range(3000)
    )
    await machines.put_machines(
        make_machine("looks-14", "10.70.1.14"), make_machine("looks-15", "10.70.1.15")
    )
    await machines.change_machine("looks-14", addresses=flood)
    fault, facts = await asyncio.gather(
        query_fault(talos, "10.70.1.14", deadline_seconds=20),
        talos.fetch_facts("10.70.1.15", deadline_seconds=20),
    )
    assert (fault.kind, fault.step) == ("invalid", "AddressStatus")
    assert isinstance(facts, MachineFacts)
    await machines.delete_machines("looks-14")


async def test_a_cancelled_look_leaves_nothing_running(machines: MachineFleet, talos: TalosApi):
    await machines.put_machines(make_machine("looks-17", "10.70.1.17"))
    await talos.fetch_facts("10.70.1.17", deadline_seconds=HANG_SECONDS)
    await machines.set_faults("looks-17", hang=True)
    before = asyncio.all_tasks()
    look = asyncio.create_task(talos.fetch_facts("10.70.1.17", deadline_seconds=HANG_SECONDS))
    await machines.count_calls()  # a round trip: the look has begun
    look.cancel()
    with pytest.raises(asyncio.CancelledError):
        await look
    assert asyncio.all_tasks() - before <= {look}
    await machines.set_faults("looks-17")


async def test_the_networks_of_the_cluster_come_from_a_control_plane(talos: TalosApi):
    assert await talos.fetch_cluster_networks(deadline_seconds=HANG_SECONDS) == MachineConfigNetworks(
        pod_cidrs=CONTROL_PLANE.pod_cidrs, service_cidrs=CONTROL_PLANE.service_cidrs
    )


async def test_a_machine_cannot_name_the_cluster_for_others(machines: MachineFleet, talos: TalosApi):
    await machines.put_machines(make_machine("looks-21", "10.70.1.21", cluster_name="mine"))
    assert (await talos.fetch_facts("10.70.1.21", deadline_seconds=HANG_SECONDS)).cluster_name == "testbed"


async def test_only_the_talosconfig_names_the_cluster_unless_the_cluster_is_to_be_asked(
    machines: MachineFleet, tmp_path: Path, observed: Observed, talos: TalosApi
):
    await machines.put_machines(make_machine("looks-22", "10.70.1.22"))
    unnamed = machines.write_talosconfig(tmp_path / "unnamed")
    document = yaml.safe_load(unnamed.read_text())
    document["contexts"][document["context"]]["cluster"] = "by-talosconfig"
    named = tmp_path / "named"
    named.write_text(yaml.safe_dump(document))
    for config, name in ((unnamed, ""), (named, "by-talosconfig")):
        async with asking(config, observe=observed) as api:
            assert (await api.fetch_facts("10.70.1.22", deadline_seconds=HANG_SECONDS)).cluster_name == name
    assert "clusterinfo" not in {request for request, _ in observed}


async def test_without_a_control_plane_the_cluster_has_no_name_and_nodes_have_facts(
    machines: MachineFleet, talos: TalosApi, observed: Observed
):
    await machines.put_machines(make_machine("looks-19", "10.70.1.19"))
    await machines.delete_machines(CONTROL_PLANE.id)
    facts = await talos.fetch_facts("10.70.1.19", deadline_seconds=HANG_SECONDS)
    await machines.put_machines(CONTROL_PLANE)
    assert facts.cluster_name == ""
    assert ("clusterinfo", True) in observed


async def test_the_deadline_of_a_look_does_not_run_while_it_waits_for_a_slot(
    machines: MachineFleet, tmp_path: Path
):
    await machines.put_machines(make_machine("looks-20", "10.70.1.20"))
    await machines.set_faults("looks-20", delay_ms=500)
    async with asking(machines.write_talosconfig(tmp_path / "config"), max_concurrent_queries=1) as api:
        facts = await asyncio.gather(*(api.fetch_facts("10.70.1.20", deadline_seconds=3) for _ in range(8)))
    times = sorted(each.queried_at for each in facts)
    assert times[-1] - times[0] > timedelta(seconds=3)
