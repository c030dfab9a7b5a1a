"""csr approves by an enrichment only while metadata goes on publishing it: the age is by the bus's clock."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from libs.common.contract.machine import AddressStatus
from libs.common.contract.subjects import ENRICHED_CSR
from tests.builders import make_facts, make_node
from tests.bus_actors import wait_until
from tests.clocks import ManualClock
from tests.csr_actors import SOON, CsrServiceFlow, make_serving_request

OWN = AddressStatus(address="10.0.0.5/24", link="eth0", flags=128)
SHARED = AddressStatus(address="10.0.0.77/24", link="eth1", flags=128)
HONEST = make_facts(addresses=(OWN, SHARED))
RIVAL = make_node("db-1", uid="uid-db", ip="10.0.0.9")
RIVALS = make_facts(node_name="db-1", node_ip="10.0.0.9", addresses=(SHARED,))


@pytest.fixture
def clock() -> ManualClock:
    """Of everybody, unless a test says otherwise."""
    return ManualClock()


@pytest.fixture
async def flow(clock: ManualClock, tmp_path: Path) -> AsyncIterator[CsrServiceFlow]:
    async with CsrServiceFlow.open("memory", tmp_path, bus_clock=clock) as running:
        yield running


async def waits_on_a_rival(flow: CsrServiceFlow) -> None:
    await flow.enrich(RIVAL, RIVALS)
    await flow.enrich(make_node(), HONEST)
    await flow.file_and_enrich(make_serving_request(ips=("10.0.0.77",)), facts=HONEST, node_uid="uid-1")
    assert "claimed by Node db-1" in (await flow.wait_for_decision("csr-1", "waiting")).reason


async def waits_for_metadata(flow: CsrServiceFlow) -> None:
    async def is_so() -> bool:
        decided = await flow.get_decision("csr-1")
        assert decided is None or decided.outcome == "waiting", decided.reason
        return decided is not None and "metadata has not published" in decided.reason

    await wait_until(is_so, "it waits until metadata publishes it again")


@pytest.mark.parametrize(("age", "is_approved"), [(119.0, True), (121.0, False)])
async def test_nothing_is_approved_by_facts_older_than_two_periods_in_which_metadata_publishes_again(
    age: float, is_approved: bool, flow: CsrServiceFlow, clock: ManualClock
):
    async with flow.run_csr(clock=clock, republish_interval_seconds=60.0) as csr:
        await waits_on_a_rival(flow)
        clock.advance(age)
        await flow.publish_leading()
        await flow.publish_node_gone(RIVAL)
        if not is_approved:
            await waits_for_metadata(flow)
            assert flow.kube.patched == []
            assert csr._state.waiting.by_name["csr-1"].reason == "age"
            # unchanged, said again
            await flow.enrich_request(flow.kube.request("csr-1"), facts=HONEST, node_uid="uid-1")
        await flow.wait_for_decision("csr-1", "approved", seconds=SOON)


async def test_over_nats_a_csr_that_starts_later_reads_the_age_from_the_stream(tmp_path: Path):
    """Its own clock stands still: only the stamps of nats-server tell it."""
    async with CsrServiceFlow.open("nats", tmp_path) as flow:
        async with flow.run_csr():
            await waits_on_a_rival(flow)
        enriched = await flow.bus.get_last(f"{ENRICHED_CSR}.csr-1")
        assert enriched is not None
        lately = enriched.published_at + timedelta(seconds=1.0)
        await wait_until(lambda: datetime.now(UTC) > lately, "it is a second old")
        await flow.publish_node_gone(RIVAL)
        async with flow.run_csr(seed=2, republish_interval_seconds=0.4):
            await flow.publish_leading()
            await waits_for_metadata(flow)
            assert flow.kube.patched == []
            await flow.enrich_request(flow.kube.request("csr-1"), facts=HONEST, node_uid="uid-1")
            await flow.wait_for_decision("csr-1", "approved")


async def test_what_can_never_be_valid_is_denied_by_an_old_message_too(
    flow: CsrServiceFlow, clock: ManualClock
):
    await flow.file_and_enrich(make_serving_request(dns=("kubernetes",)), facts=HONEST, node_uid="uid-1")
    clock.advance(55 * 60)
    async with flow.run_csr(clock=clock):
        await flow.wait_for_decision("csr-1", "denied", seconds=SOON)


async def test_what_only_old_facts_speak_against_is_not_denied(flow: CsrServiceFlow, clock: ManualClock):
    await flow.file_and_enrich(
        make_serving_request(dns=("web-1", "other.example.com")), facts=HONEST, node_uid="uid-1"
    )
    clock.advance(55 * 60)
    await flow.enrich(make_node(), HONEST)
    async with flow.run_csr(clock=clock):
        await waits_for_metadata(flow)
        assert flow.kube.patched == []


async def test_without_talos_the_age_counts_as_well(flow: CsrServiceFlow, clock: ManualClock):
    await flow.file_and_enrich(make_serving_request(), without_talos=True)
    clock.advance(55 * 60)
    await flow.publish_node(make_node())
    async with flow.run_csr(clock=clock, ready=False, allowed_networks=("10.0.0.0/8",)):
        await waits_for_metadata(flow)
        assert flow.kube.patched == []
