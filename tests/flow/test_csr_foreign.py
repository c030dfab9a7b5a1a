"""Requests of Nodes that the file has be another's: csr neither approves nor denies them."""

import math
from pathlib import Path
from typing import Any, Final

import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.observability import metrics
from tests.builders import make_facts, make_node
from tests.bus_actors import wait_until
from tests.bus_server import make_flow_fixture
from tests.clocks import ManualClock
from tests.csr_actors import SOON, CsrServiceFlow, make_serving_request
from tests.service_flow import REFUSED

TEAM_A: Final = "ownership: {nodeSelector: [{matchExpressions: [{key: team, operator: In, values: [a]}]}]}"
OURS, THEIRS = make_node(labels={"team": "a"}), make_node(labels={"team": "b"})
HONEST: Final = make_facts()
EVIL: Final = make_serving_request(ips=("127.0.0.1",), age_seconds=90)  # denied wherever it is ours


flow = make_flow_fixture(CsrServiceFlow.open)


def by(text: str) -> dict[str, Any]:
    return {"file": parse_cloud_config(text, "f")}


STATES: Final[dict[str, tuple[MachineFacts | None, bool]]] = {
    "its machine attests all": (HONEST, False),
    "its machine attests something else": (make_facts(node_ip="10.9.9.9", addresses=()), False),
    "its machine is another": (make_facts(node_name="db-1"), False),
    "its machine is silent": (None, False),
    "it requests a forbidden usage": (HONEST, True),
}


@pytest.mark.parametrize("state", STATES)
async def test_a_request_of_a_foreign_node_is_left_alone_whatever_its_state(state: str, flow: CsrServiceFlow):
    facts, evil = STATES[state]
    request = EVIL if evil else make_serving_request(age_seconds=90)
    clock = ManualClock()
    async with flow.run_csr(clock=clock, **by(TEAM_A)) as csr:
        if facts is None:
            await flow.publish_unreachable(THEIRS)
            await flow.file_and_enrich(request, fault=REFUSED, node_uid="uid-1")
        else:
            await flow.enrich(THEIRS, facts)
            await flow.file_and_enrich(request, facts=facts, node_uid="uid-1")
        decided = await flow.wait_for_decision("csr-1", "not-ours")
        clock.advance(60.0)
        csr._waiting_request_reconciler.run_periodic_checks()
        assert metrics.CSR_OLDEST_PENDING_AGE._value.get() == 0, "csr has nothing to decide"
    assert flow.kube.patched == []
    assert flow.kube.events == []
    assert 'team is "b", not "a"' in decided.reason


async def test_a_request_is_answered_when_its_node_becomes_ours(flow: CsrServiceFlow):
    async with flow.run_csr(**by(TEAM_A)):
        await flow.enrich(THEIRS, HONEST)
        await flow.file_and_enrich(make_serving_request(), facts=HONEST, node_uid="uid-1")
        await flow.wait_for_decision("csr-1", "not-ours")
        await flow.enrich(OURS, HONEST)
        await flow.wait_for_decision("csr-1", "approved")
    assert flow.kube.patched == ["csr-1"]


async def test_a_request_whose_node_becomes_ours_without_a_leader_is_answered_once_there_is_one(
    flow: CsrServiceFlow,
):
    """Its message is acknowledged, so nobody delivers it again."""
    clock = ManualClock()
    async with flow.run_csr(clock=clock, **by(TEAM_A)) as csr:
        await flow.enrich(THEIRS, HONEST)
        await flow.file_and_enrich(make_serving_request(), facts=HONEST, node_uid="uid-1")
        await flow.wait_for_decision("csr-1", "not-ours")
        clock.advance(11)
        await flow.enrich(OURS, HONEST)
        pending = csr._state.requests.by_name["csr-1"]
        await wait_until(lambda: pending.retry_at < math.inf, "csr may not answer it")
        csr._waiting_request_reconciler.run_periodic_checks()
        await flow.publish_leading()
        await flow.wait_for_decision("csr-1", "approved", seconds=SOON)


async def test_nothing_is_denied_before_its_node_says_whose_it_is(flow: CsrServiceFlow):
    async with flow.run_csr(**by(TEAM_A)):
        await flow.file_and_enrich(EVIL)
        waiting = await flow.wait_for_decision("csr-1", "waiting")
        assert "Node web-1 does not exist, so its owner is unknown" in waiting.reason
        assert flow.kube.patched == []
        await flow.publish_node(OURS)
        await flow.wait_for_decision("csr-1", "denied")


async def test_a_foreign_rival_of_our_node_is_told_nothing(flow: CsrServiceFlow):
    """A conflict about an address is reported on our Node only."""
    rival = make_node("db-1", uid="uid-2", labels={"team": "b"})
    same = AddressStatus(address="10.0.0.9/24", link="eth1", flags=128)
    clock = ManualClock()
    async with flow.run_csr(clock=clock, **by(TEAM_A)) as csr:
        ours = make_facts(addresses=(*HONEST.addresses, same))
        await flow.enrich(rival, make_facts(node_name="db-1", node_ip="10.0.0.7", addresses=(same,)))
        await flow.enrich(OURS, ours)
        await flow.file_and_enrich(make_serving_request(ips=("10.0.0.9",)), facts=ours, node_uid="uid-1")
        await flow.wait_for_decision("csr-1", "waiting")
        clock.advance(60.0)
        csr._waiting_request_reconciler.run_periodic_checks()
        await wait_until(lambda: bool(flow.kube.events), "the wait is reported")
        await csr._event_recorder.flush()
    assert {event.regarding.name for event in flow.kube.events} == {"web-1"}


async def test_when_the_file_gives_us_a_node_its_request_is_answered_and_a_bad_file_changes_nothing(
    flow: CsrServiceFlow, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "config.yaml"
    path.write_text(TEAM_A)
    followed: dict[str, Any] = {"cloud_config": path, "cloud_config_poll_seconds": 0.05}
    db = make_node("db-1", uid="uid-2", ip="10.0.0.6", labels={"team": "b"})
    of_db = make_facts(node_name="db-1", node_ip="10.0.0.6", addresses=())
    async with flow.run_csr(**by(TEAM_A), **followed) as csr:
        await flow.enrich(THEIRS, HONEST)
        await flow.file_and_enrich(make_serving_request(), facts=HONEST, node_uid="uid-1")
        await flow.wait_for_decision("csr-1", "not-ours")
        path.write_text("ownership: {nodeSelector: []}")
        await wait_until(lambda: "--cloud-config rejected" in caplog.text, "the bad file is read")
        await flow.enrich(db, of_db)
        await flow.file_and_enrich(
            make_serving_request("csr-2", node="db-1", ips=()), facts=of_db, node_uid="uid-2"
        )
        await flow.wait_for_decision("csr-2", "not-ours")
        assert flow.kube.patched == []
        assert "ownership.nodeSelector must have at least one entry" in csr.problems()[0]
        path.write_text(TEAM_A.replace("[a]", "[a, b]"))
        await flow.wait_for_decision("csr-1", "approved")
        await flow.wait_for_decision("csr-2", "approved")
        assert csr.problems() == ()
