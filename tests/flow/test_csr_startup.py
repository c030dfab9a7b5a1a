"""csr approves nothing before metadata has reported on every machine: an unheard one may be a rival."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common.machine import AddressStatus, MachineFacts, MachineFault
from tests.builders import a_node, some_facts
from tests.bus_actors import eventually, until_led
from tests.csr_actors import CsrFlow, asks

SOON = 2.0  # a wait ends that soon after what it waits for
SHARED = AddressStatus(address="10.0.0.77/24", link="eth1", flags=128)
WEB, DB = a_node(), a_node("db-1", uid="uid-db", ip="10.0.0.9")
CONTESTED = asks(ips=("10.0.0.77",))  # an address that no Node object names


def facts_of(name: str, ip: str, *more: AddressStatus) -> MachineFacts:
    own = AddressStatus(address=f"{ip}/24", link="eth0", flags=128)
    return some_facts(node_name=name, node_ip=ip, addresses=(own, *more))


WEBS = facts_of("web-1", "10.0.0.5", SHARED)
DBS = facts_of("db-1", "10.0.0.9", SHARED)


@pytest.fixture
async def flow(tmp_path: Path) -> AsyncIterator[CsrFlow]:
    async with CsrFlow.on("memory", tmp_path) as running:
        yield running


async def there_at_the_start(flow: CsrFlow, *names: str) -> None:
    """These Nodes are in the stream before csr starts; metadata has reported on none."""
    for node in (WEB, DB):
        if node.name in names:
            await flow.node(node)


async def test_after_a_wiped_stream_a_request_that_waits_on_a_rival_is_not_approved_before_the_rival_is_heard(
    tmp_path: Path,
):
    async with CsrFlow.on("nats", tmp_path) as flow, flow.csr_running() as csr:
        await flow.machine(WEB, WEBS)
        await flow.machine(DB, DBS)
        await flow.asked(CONTESTED, facts=WEBS, node_uid="uid-1")
        assert "db-1" in (await flow.until_decided("csr-1", "waiting")).reason
        await flow.wipe(WEB, DB)
        await until_led(csr, flow.bus)
        await flow.observe(flow.kube.request("csr-1"))
        await flow.machine(WEB, WEBS)
        await flow.enrich(flow.kube.request("csr-1"), facts=WEBS, node_uid="uid-1")
        await flow.until_decided("csr-1", "waiting", "approved")
        assert flow.kube.patched == []
        assert any("1 machine, such as db-1" in problem for problem in csr.problems())
        await flow.machine(DB, DBS)
        await eventually(lambda: csr.problems() == (), "the gate is open")

        async def waits_on_its_rival() -> bool:
            decided = await flow.decided("csr-1")
            return decided is not None and "claimed by Node db-1" in decided.reason

        await eventually(waits_on_its_rival, "it waits on the rival again")
        assert flow.kube.patched == []


async def test_a_request_waits_for_the_first_report_on_every_machine_that_was_there(flow: CsrFlow):
    await there_at_the_start(flow, "web-1", "db-1")
    async with flow.csr_running(ready=False) as csr:
        await flow.machine(WEB, WEBS)
        await flow.asked(CONTESTED, facts=WEBS, node_uid="uid-1")
        decided = await flow.until_decided("csr-1", "waiting", "approved")
        assert decided.reason == "not every machine is known yet: csr waits for metadata's first reports"
        assert flow.kube.patched == []
        assert [waiting.reason for waiting in csr._waiting_requests.by_name.values()] == ["startup"]
        assert csr.problems() == ("waits for metadata's first report on 1 machine, such as db-1",)
        await flow.machine(DB, facts_of("db-1", "10.0.0.9"))
        await flow.until_decided("csr-1", "approved", seconds=SOON)
        assert csr.problems() == ()


async def test_a_further_report_does_not_change_the_message_of_a_waiting_request(flow: CsrFlow):
    nodes = [a_node(f"old-{n}", uid=f"uid-{n}", ip=f"10.0.3.{n}") for n in range(3)]
    for node in nodes:
        await flow.node(node)
    async with flow.csr_running(ready=False) as csr:
        await flow.machine(WEB, WEBS)
        await flow.asked(CONTESTED, facts=WEBS, node_uid="uid-1")
        first = await flow.until_decided("csr-1", "waiting")
        await flow.silent(nodes[0])
        await eventually(lambda: "2 machines" in "".join(csr.problems()), "one is reported")
        assert csr._reports.why_reports_missing() == first.reason


async def test_an_unreachable_machine_keeps_nobody_waiting(flow: CsrFlow):
    await there_at_the_start(flow, "web-1", "db-1")
    async with flow.csr_running(ready=False):
        await flow.machine(WEB, WEBS)
        await flow.asked(CONTESTED, facts=WEBS, node_uid="uid-1")
        await flow.until_decided("csr-1", "waiting")
        await flow.silent(DB)
        await flow.until_decided("csr-1", "approved", seconds=SOON)


async def test_while_metadata_cannot_query_talos_no_machine_counts_as_reported(flow: CsrFlow):
    no_endpoint = MachineFault(kind="no_endpoint", step="credentials", message="no talosconfig")
    await there_at_the_start(flow, "web-1", "db-1")
    async with flow.csr_running(ready=False) as csr:
        await flow.silent(WEB, fault=no_endpoint)
        await flow.silent(DB, fault=no_endpoint)
        cause = "such as db-1; metadata cannot query Talos: no talosconfig"
        waits = f"waits for metadata's first report on 2 machines, {cause}"
        await eventually(lambda: csr.problems() == (waits,), "readiness gives the cause")
        await flow.machine(WEB, WEBS)
        await flow.asked(CONTESTED, facts=WEBS, node_uid="uid-1")
        await flow.until_decided("csr-1", "waiting")
        assert flow.kube.patched == []
        await flow.silent(DB)
        await flow.until_decided("csr-1", "approved", seconds=SOON)


async def test_a_deleted_node_keeps_nobody_waiting(flow: CsrFlow):
    await there_at_the_start(flow, "web-1", "db-1")
    async with flow.csr_running(ready=False):
        await flow.machine(WEB, WEBS)
        await flow.asked(CONTESTED, facts=WEBS, node_uid="uid-1")
        await flow.until_decided("csr-1", "waiting")
        await flow.node_gone(DB)
        await flow.until_decided("csr-1", "approved", seconds=SOON)


async def test_a_kubelet_that_keeps_changing_its_node_ip_keeps_nobody_waiting(flow: CsrFlow):
    await there_at_the_start(flow, "web-1")
    await flow.node(a_node("evil-1", uid="uid-evil", ip="10.9.0.1"))
    async with flow.csr_running(ready=False) as csr:
        await flow.machine(WEB, WEBS)
        await flow.asked(CONTESTED, facts=WEBS, node_uid="uid-1")
        await flow.until_decided("csr-1", "waiting")
        await flow.node(a_node("evil-1", uid="uid-evil", ip="10.9.0.2"))
        await flow.until_decided("csr-1", "approved", seconds=SOON)
        assert csr.problems() == ()


async def test_a_kubelet_that_changes_its_node_ip_releases_no_rival(flow: CsrFlow):
    await there_at_the_start(flow, "web-1", "db-1")
    await flow.node(a_node("evil-1", uid="uid-evil", ip="10.9.0.1"))
    async with flow.csr_running(ready=False) as csr:
        await flow.node(a_node("evil-1", uid="uid-evil", ip="10.0.0.9"))
        await flow.machine(WEB, WEBS)
        await flow.asked(CONTESTED, facts=WEBS, node_uid="uid-1")
        await flow.until_decided("csr-1", "waiting")
        assert csr.problems() == ("waits for metadata's first report on 1 machine, such as db-1",)
        assert flow.kube.patched == []


async def test_the_first_node_of_a_cluster_gets_its_certificate_with_its_first_report(flow: CsrFlow):
    await there_at_the_start(flow, "web-1")
    async with flow.csr_running(ready=False):
        await flow.asked(asks(), facts=WEBS, node_uid="uid-1")
        await flow.until_decided("csr-1", "waiting")
        await flow.machine(WEB, WEBS)
        await flow.until_decided("csr-1", "approved", seconds=SOON)


async def test_a_node_that_joins_later_does_not_close_the_gate_again(flow: CsrFlow):
    async with flow.csr_running() as csr:
        for number in range(50):
            await flow.node(a_node(f"new-{number}", uid=f"uid-{number}", ip=f"10.0.2.{number}"))
        await flow.machine(WEB, WEBS)
        await flow.asked(CONTESTED, facts=WEBS, node_uid="uid-1")
        await flow.until_decided("csr-1", "approved", seconds=SOON)
        assert csr.problems() == ()


async def test_a_node_without_node_ip_is_never_reported_on_and_not_awaited(flow: CsrFlow):
    await flow.node(a_node("odd-1", uid="uid-odd", ip=""))
    async with flow.csr_running():
        await flow.machine(WEB, WEBS)
        await flow.asked(CONTESTED, facts=WEBS, node_uid="uid-1")
        await flow.until_decided("csr-1", "approved", seconds=SOON)


async def test_what_can_never_be_valid_is_denied_at_once(flow: CsrFlow):
    await there_at_the_start(flow, "web-1", "db-1")
    async with flow.csr_running(ready=False):
        await flow.machine(WEB, WEBS)
        await flow.asked(asks(dns=("kubernetes",)), facts=WEBS, node_uid="uid-1")
        await flow.until_decided("csr-1", "denied", seconds=SOON)


async def test_without_talos_there_is_no_gate(flow: CsrFlow):
    await there_at_the_start(flow, "web-1", "db-1")
    async with flow.csr_running(without_talos=True, allowed_networks=("10.0.0.0/8",)) as csr:
        assert csr.problems() == ()
        await flow.asked(asks(), without_talos=True)
        await flow.until_decided("csr-1", "approved", seconds=SOON)


async def test_that_metadata_asks_no_machine_is_learned_from_its_first_message(flow: CsrFlow):
    await there_at_the_start(flow, "web-1", "db-1")
    async with flow.csr_running(ready=False, allowed_networks=("10.0.0.0/8",)) as csr:
        assert csr.problems() == ("waits for metadata's first report on 2 machines, such as db-1",)
        await flow.asked(asks(), without_talos=True)
        await flow.until_decided("csr-1", "approved", seconds=SOON)
        assert csr.problems() == ()


async def test_the_flag_opens_no_gate_for_what_a_machine_attests(flow: CsrFlow):
    """csr is told --without-talos, and metadata asks machines all the same."""
    await there_at_the_start(flow, "web-1", "db-1")
    async with flow.csr_running(without_talos=True) as csr:
        await flow.machine(WEB, WEBS)
        await flow.asked(CONTESTED, facts=WEBS, node_uid="uid-1")
        await flow.until_decided("csr-1", "waiting")
        assert csr.problems() == ("waits for metadata's first report on 1 machine, such as db-1",)
        assert flow.kube.patched == []
