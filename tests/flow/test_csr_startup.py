"""csr approves nothing before metadata has reported on every machine: an unheard one may be a rival."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.contract.machine import AddressStatus, MachineFacts
from tests.builders import make_facts, make_node
from tests.bus_actors import wait_until, wait_until_led
from tests.bus_server import make_flow_fixture
from tests.csr_actors import SOON, CsrServiceFlow, make_serving_request

SHARED = AddressStatus(address="10.0.0.77/24", link="eth1", flags=128)
WEB, DB = make_node(), make_node("db-1", uid="uid-db", ip="10.0.0.9")
CONTESTED = make_serving_request(ips=("10.0.0.77",))  # an address that no Node object names


def facts_of(name: str, ip: str, *more: AddressStatus) -> MachineFacts:
    own = AddressStatus(address=f"{ip}/24", link="eth0", flags=128)
    return make_facts(node_name=name, node_ip=ip, addresses=(own, *more))


WEBS = facts_of("web-1", "10.0.0.5", SHARED)
DBS = facts_of("db-1", "10.0.0.9", SHARED)


flow = make_flow_fixture(CsrServiceFlow.open)


async def publish_nodes(flow: CsrServiceFlow) -> None:
    """Both Nodes are in the stream before csr starts; metadata has reported on none."""
    for node in (WEB, DB):
        await flow.publish_node(node)


async def test_after_a_wiped_stream_a_request_that_waits_on_a_rival_is_not_approved_before_the_rival_is_heard(
    tmp_path: Path,
):
    async with CsrServiceFlow.open("nats", tmp_path) as flow, flow.run_csr() as csr:
        await flow.enrich(WEB, WEBS)
        await flow.enrich(DB, DBS)
        await flow.file_and_enrich(CONTESTED, facts=WEBS, node_uid="uid-1")
        assert "db-1" in (await flow.wait_for_decision("csr-1", "waiting")).reason
        await flow.wipe(WEB, DB)
        await wait_until_led(csr, flow.bus)
        await flow.observe_request(flow.kube.request("csr-1"))
        await flow.enrich(WEB, WEBS)
        await flow.enrich_request(flow.kube.request("csr-1"), facts=WEBS, node_uid="uid-1")
        await flow.wait_for_decision("csr-1", "waiting", "approved")
        assert flow.kube.patched == []
        assert any("1 machine, such as db-1" in problem for problem in csr.problems())
        await flow.enrich(DB, DBS)
        await wait_until(lambda: csr.problems() == (), "the gate is open")

        async def waits_on_its_rival() -> bool:
            decided = await flow.get_decision("csr-1")
            return decided is not None and "claimed by Node db-1" in decided.reason

        await wait_until(waits_on_its_rival, "it waits on the rival again")
        assert flow.kube.patched == []


async def test_a_request_waits_for_the_first_report_on_every_machine_that_was_there(flow: CsrServiceFlow):
    await publish_nodes(flow)
    async with flow.run_csr(ready=False) as csr:
        await flow.enrich(WEB, WEBS)
        await flow.file_and_enrich(CONTESTED, facts=WEBS, node_uid="uid-1")
        decided = await flow.wait_for_decision("csr-1", "waiting", "approved")
        assert decided.reason == "not every machine is known yet: csr waits for metadata's first reports"
        assert flow.kube.patched == []
        assert [waiting.reason for waiting in csr._state.waiting.by_name.values()] == ["startup"]
        assert csr.problems() == ("waits for metadata's first report on 1 machine, such as db-1",)
        await flow.enrich(DB, facts_of("db-1", "10.0.0.9"))
        await flow.wait_for_decision("csr-1", "approved", seconds=SOON)
        assert csr.problems() == ()


@pytest.mark.parametrize(("facts", "outcome"), [(DBS, "waiting"), (facts_of("db-1", "10.0.0.9"), "approved")])
async def test_nothing_is_approved_while_a_node_is_of_a_newer_version(
    flow: CsrServiceFlow, facts: MachineFacts, outcome: str
):
    newer: Any = "of a newer version"
    await flow.publish_node(WEB)
    await flow.publish_node(msgspec.structs.replace(DB, spec=msgspec.structs.replace(DB.spec, taints=newer)))
    async with flow.run_csr(ready=False) as csr:
        await flow.enrich(WEB, WEBS)
        await flow.file_and_enrich(CONTESTED, facts=WEBS, node_uid="uid-1")
        decided = await flow.wait_for_decision("csr-1", "waiting", "approved")
        assert decided.reason.startswith("the last message about Node db-1 is unreadable or fenced")
        assert flow.kube.patched == []
        await flow.enrich(DB, facts)
        await wait_until(lambda: csr._state.claims.get_node("db-1") is not None, "it is known")
        if outcome == "waiting":
            await wait_until(
                lambda: len(csr._state.claims.find_by_address("10.0.0.77")) == 2, "both are known"
            )
            assert flow.kube.patched == []
        else:
            await flow.wait_for_decision("csr-1", "approved", seconds=SOON)


async def test_what_can_never_be_valid_is_denied_at_once(flow: CsrServiceFlow):
    await publish_nodes(flow)
    async with flow.run_csr(ready=False):
        await flow.enrich(WEB, WEBS)
        await flow.file_and_enrich(make_serving_request(dns=("kubernetes",)), facts=WEBS, node_uid="uid-1")
        await flow.wait_for_decision("csr-1", "denied", seconds=SOON)


async def test_without_talos_there_is_no_gate(flow: CsrServiceFlow):
    await publish_nodes(flow)
    async with flow.run_csr(without_talos=True, allowed_networks=("10.0.0.0/8",)) as csr:
        assert csr.problems() == ()
        await flow.file_and_enrich(make_serving_request(), without_talos=True)
        await flow.wait_for_decision("csr-1", "approved", seconds=SOON)


async def test_that_metadata_asks_no_machine_is_learned_from_its_first_message(flow: CsrServiceFlow):
    await publish_nodes(flow)
    async with flow.run_csr(ready=False, allowed_networks=("10.0.0.0/8",)) as csr:
        assert csr.problems() == ("waits for metadata's first report on 2 machines, such as db-1",)
        await flow.file_and_enrich(make_serving_request(), without_talos=True)
        await flow.wait_for_decision("csr-1", "approved", seconds=SOON)
        assert csr.problems() == ()


async def test_the_flag_opens_no_gate_for_what_a_machine_attests(flow: CsrServiceFlow):
    """csr runs with --without-talos, but metadata queries machines."""
    await publish_nodes(flow)
    async with flow.run_csr(without_talos=True) as csr:
        await flow.enrich(WEB, WEBS)
        await flow.file_and_enrich(CONTESTED, facts=WEBS, node_uid="uid-1")
        await flow.wait_for_decision("csr-1", "waiting")
        assert csr.problems() == ("waits for metadata's first report on 1 machine, such as db-1",)
        assert flow.kube.patched == []
