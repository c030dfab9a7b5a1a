"""`inside flow`: what the reader's key shows of a real NATS, configured as the bootstrap configures it."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from cli.inside.flow_reader import query_nats
from cli.inside.flow_snapshot import FlowObject, FlowSnapshot, FlowUnavailable
from libs.common.bus.delivery import Ack
from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.contract.events import AccountReport, KubeServiceObserved, Leading
from libs.common.contract.kube_service import (
    BALANCER_BLOCKED_CONDITION,
    KubeServiceCondition,
    KubeServiceStatus,
)
from libs.common.contract.services import DURABLES, SERVICES, WATCHER
from libs.common.contract.subjects import ENRICHED_NODE
from tests.bootstrap_actors import BootstrapInstallation, install_bootstrap
from tests.builders import (
    make_dead_letter,
    make_decided,
    make_kube_service,
    make_kube_service_observed,
    make_node,
)
from tests.bus_actors import MAX_BYTES, make_event, run_during, wait_until
from tests.instance_reports import make_exists
from tests.integration.conftest import ConnectBus

WEB = FlowObject("node", "web-1")


@pytest.fixture(scope="module")
async def nats(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BootstrapInstallation]:
    """Shared by all tests: a test that needs another stream wipes it."""
    folder = tmp_path_factory.mktemp("nats-seen")
    async with install_bootstrap(folder, flags=["--cloud-accounts=prod,other"]) as made:
        yield made


@pytest.fixture
async def watcher(nats: BootstrapInstallation, connect_bus: ConnectBus) -> NatsBus:
    """With an empty stream."""
    await nats.server.wipe()
    watcher = await connect_bus("watcher", **nats.bus_options("watcher"))
    await wait_until(lambda: not watcher.problems() or "does not exist" in watcher.problems()[0])
    await watcher.provision(DURABLES, max_bytes=MAX_BYTES)
    return watcher


async def seen(nats: BootstrapInstallation, *objects: FlowObject) -> FlowSnapshot:
    found = await query_nats(nats.nats_access("reader"), objects)
    assert isinstance(found, FlowSnapshot), found
    return found


async def test_the_last_words_about_an_object_are_seen_and_who_leads(
    nats: BootstrapInstallation, watcher: NatsBus, connect_bus: ConnectBus
):
    metadata = await connect_bus("metadata", **nats.bus_options("metadata"))
    labeler = await connect_bus("labeler", **nats.bus_options("labeler"))
    word = make_event("web-1")
    said = make_decided()
    await metadata.publish(word)
    await labeler.publish(said)
    await watcher.publish(Leading(stream_id=watcher.stream_id, epoch=7, holder="watcher-a"))
    found = await seen(nats, WEB, FlowObject("csr", "csr-1"))
    about = found.find_object("node", "web-1")
    assert about
    assert [each.event for each in about.messages] == [word, said]
    nothing = found.find_object("csr", "csr-1")
    assert nothing
    assert not nothing.messages
    assert found.leader
    assert found.leader.holder == "watcher-a"
    assert found.leader_heartbeat_seconds is not None
    assert found.stream
    assert found.stream.created == watcher.stream_id
    assert found.stream.max_bytes == MAX_BYTES
    assert found.stream.messages == 3
    assert {each.name for each in found.certificates} == {"nats-server", "nats-authority"}


async def test_what_each_account_of_a_cloud_says_of_a_node_is_seen(
    nats: BootstrapInstallation, watcher: NatsBus, connect_bus: ConnectBus
):
    node = make_node("web-1", uid="u", provider_id="hcloud://7")
    other = make_node("web-1.example.com", uid="u", provider_id="hcloud://8")
    for account in ("prod", "other"):
        bus = await connect_bus(f"cloud-{account}", **nats.bus_options(f"cloud-{account}"))
        for about in (node, other):
            await bus.publish(make_exists(about, account=account))
        await bus.publish(AccountReport(account=account, provider="hcloud"))
    found = await seen(nats, WEB, FlowObject("node", "web-2"))
    accounts = [message.event for message in found.accounts]
    assert accounts == [AccountReport(account=each, provider="hcloud") for each in ("other", "prod")]
    reports = [[message.event for message in each.messages] for each in found.objects]
    assert reports == [[make_exists(node, account="other"), make_exists(node)], []]


async def test_what_waits_in_a_queue_is_counted_and_who_takes_from_it_is_there(
    nats: BootstrapInstallation, watcher: NatsBus, connect_bus: ConnectBus
):
    metadata = await connect_bus("metadata", **nats.bus_options("metadata"))
    for number in range(3):
        await metadata.publish(make_event(f"web-{number}"))
    waiting = {durable.name: 3 if durable.filter.startswith(ENRICHED_NODE) else 0 for durable in DURABLES}

    async def all_are_counted() -> bool:  # a publish is acknowledged before the consumers count the message
        return {queue.name: queue.pending for queue in (await seen(nats)).queues} == waiting

    await wait_until(all_are_counted, f"queues with {waiting}")
    found = await seen(nats)
    here = {service.service: service.is_present for service in found.services}
    # Only a heartbeat or a consumer shows that a service is present.
    assert here == {spec.service: False if spec == WATCHER or spec.durables else None for spec in SERVICES}
    assert (here["labeler"], here["metadata"]) == (False, None)
    labeler = await connect_bus("labeler", **nats.bus_options("labeler"))
    [durable] = [each for each in DURABLES if each.name == "labeler-nodes"]

    async def handle(message: object) -> Ack:
        return Ack()

    async def labeler_is_seen() -> bool:
        now = await seen(nats)
        [queue] = [each for each in now.queues if each.name == "labeler-nodes"]
        there = {service.service: service.is_present for service in now.services}
        return queue.pending == 0 and queue.acknowledged_at is not None and there["labeler"] is True

    async with run_during(labeler.consume(durable, handle, in_flight=4)):
        await wait_until(labeler_is_seen, "labeler is there")


async def test_dead_letters_are_seen_with_their_reason(
    nats: BootstrapInstallation, watcher: NatsBus, connect_bus: ConnectBus
):
    labeler = await connect_bus("labeler", **nats.bus_options("labeler"))
    letters = [make_dead_letter(name, reason="it holds no address") for name in ("web-1", "web-2")]
    for letter in letters:
        await labeler.publish(letter)
    found = await seen(nats, WEB)
    assert found.dead_count == 2
    second, first = (word.event for word in found.dead)
    assert [first, second] == letters
    about = found.find_object("node", "web-1")
    assert about
    assert [word.event for word in about.messages] == [first]


async def test_only_services_whose_load_balancer_is_blocked_are_seen(
    nats: BootstrapInstallation, watcher: NatsBus
):
    condition = KubeServiceCondition(type=BALANCER_BLOCKED_CONDITION, status="True", message="no location")
    well = make_kube_service("well")
    blocked = msgspec.structs.replace(
        make_kube_service("blocked"), status=KubeServiceStatus(conditions=(condition,))
    )
    for service in (well, blocked):
        await watcher.publish(make_kube_service_observed(service, stream_id=watcher.stream_id))
    [found] = (await seen(nats)).blocked_services
    assert isinstance(found.event, KubeServiceObserved)
    assert found.event.service == blocked
    assert not found.is_misplaced


async def test_a_stream_that_is_not_there_is_a_finding_and_a_nats_that_is_not_there_is_unknown(
    nats: BootstrapInstallation, connect_bus: ConnectBus
):
    await nats.server.wipe()

    async def no_stream() -> bool:
        found = await query_nats(nats.nats_access("reader"))
        return isinstance(found, FlowSnapshot) and found.stream is None

    await wait_until(no_stream, "NATS is there and the stream is not")
    nowhere = NatsAccess(servers=("nats://127.0.0.1:1",), service="reader")
    unknown = await query_nats(nowhere)
    assert isinstance(unknown, FlowUnavailable)
    assert "127.0.0.1:1" in unknown.reason
