"""What a pulse says of its service: its errors since the process began, its lag, and why it is not ready."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.protocol import BusError, StreamFull, WrongLastSequence
from libs.common.contract.events import (
    MAX_EVENT_BYTES,
    MAX_PULSE_EVENTS,
    MAX_QUARANTINED_BLOCKS,
    Event,
    Pulse,
    Quarantine,
    QuarantinedBlock,
    encode,
)
from libs.common.contract.services import CONSOLE, IPAM, LABELER, METADATA, ServiceSpec, expand_cloud
from libs.common.contract.subjects import DEAD_LETTERS, DECIDED, PULSES
from libs.common.kube.events import ObjectEvent, ObjectReference, node_reference
from libs.common.observability import metrics, telemetry
from libs.common.service.open_bus import bus_hooks, observe_kubernetes
from libs.common.service.pulse_publisher import EventJournal, build_pulse, count_errors, publish_pulses
from tests.builders import NOW
from tests.bus_actors import NODES, run_during, wait_for_value, wait_until

FLORIST = replace(
    LABELER, service="florist", publishes=(f"{DECIDED}.florist.>", f"{PULSES}.florist.>"), durables=()
)


class IdleService:
    """A service that does nothing."""

    quarantine: Quarantine | None = None

    def __init__(self, spec: ServiceSpec, *problems: str) -> None:
        self.spec = spec
        self._problems = problems

    async def run(self) -> None:
        raise AssertionError("no test runs it")

    def problems(self) -> tuple[str, ...]:
        return self._problems

    def list_quarantine(self) -> Quarantine | None:
        return self.quarantine


def test_a_service_without_errors_counts_none():
    assert count_errors(replace(FLORIST, service="idle", publishes=())) == {}


def test_errors_are_counted_by_cause_and_only_for_their_service():
    metrics.HANDLED.labels("florist", "NodeEnriched", "handled").inc()
    metrics.HANDLED.labels("florist", "NodeEnriched", "waiting").inc()
    metrics.HANDLED.labels("florist", "NodeEnriched", "retried").inc(2)
    metrics.HANDLED.labels("florist", "CsrEnriched", "retried").inc()
    metrics.HANDLED.labels("cook", "NodeEnriched", "retried").inc()
    metrics.DEAD_LETTERS.labels("florist").inc()
    with telemetry.log_fields(service="florist"):
        for status in (200, 404, 409, 410, 422, 403, 0):
            observe_kubernetes("patch", "nodes", status, 0.01)
    observe_kubernetes("patch", "nodes", 500, 0.01)
    hooks = bus_hooks([])
    hooks.published("talosccm.v1.decided.florist.node.web-1")
    for error in (BusError("x"), StreamFull("x"), WrongLastSequence("x")):
        hooks.publish_failed("talosccm.v1.decided.florist.node.web-1", error)
    hooks.publish_failed(f"{DEAD_LETTERS}.cook.node.web-1", BusError("x"))
    assert count_errors(FLORIST) == {
        "retried messages": 3,
        "dead letters": 1,
        "failed publishes": 2,
        "failed Kubernetes requests": 2,
    }


def test_failed_queries_of_machines_and_clouds_belong_to_their_services():
    metrics.TALOS_REQUEST_ERRORS.labels("get").inc()
    for outcome in ("found", "not_found", "held_back", "unauthorized", "unreachable"):
        metrics.CLOUD_REQUESTS.labels("pulse-test", outcome).inc()
    assert count_errors(METADATA)["failed Talos calls"] >= 1
    assert count_errors(expand_cloud("pulse-test")) == {"failed cloud requests": 2}
    assert count_errors(expand_cloud("pulse")) == {}


async def test_a_pulse_has_the_problems_of_its_service_and_of_its_process_but_not_of_other_services():
    bus = MemoryBus(MemoryServer())
    await bus.provision((NODES,), max_bytes=0)
    services = [IdleService(FLORIST), IdleService(METADATA), IdleService(CONSOLE)]
    checks: Mapping[str, tuple[str, ...]] = {
        "bus": ("full",),
        "florist": ("no rain",),
        "metadata": (),
        "console": (),
    }

    async def read(service: str) -> Event | None:
        message = await bus.get_last(f"{PULSES}.{service}.host_1")
        return None if message is None or not isinstance(message.event, Pulse) else message.event

    async with run_during(
        publish_pulses(bus, services, "host_1", lambda: checks, EventJournal(), seconds=0.0)
    ):
        florist = await wait_for_value(lambda: read("florist"), lambda pulse: pulse is not None)
        metadata = await wait_for_value(lambda: read("metadata"), lambda pulse: pulse is not None)
    assert isinstance(florist, Pulse)
    assert isinstance(metadata, Pulse)
    assert (florist.problems, metadata.problems) == (("no rain", "full"), ("full",))
    assert await read("console") is None, "it publishes nothing"


@pytest.mark.parametrize("count", [6, 1000])
async def test_a_pulse_stays_small_whatever_a_service_reports(count: int):
    bus = MemoryBus(MemoryServer())
    pulse = build_pulse(bus, IdleService(LABELER), "host_1", ("x" * 10_000,) * count)
    assert [len(why) for why in pulse.problems] == [300] * 5
    assert (pulse.lag, pulse.oldest_at, pulse.is_leading, pulse.quarantine) == (0, None, None, None)


async def test_a_pulse_has_the_quarantine_that_its_service_reports():
    ipam = IdleService(IPAM)
    ipam.quarantine = Quarantine(read_at=NOW, count=0, blocks=())
    assert build_pulse(MemoryBus(MemoryServer()), ipam, "host_1", ()).quarantine == ipam.quarantine


# ---- Events


def make_event(name: str = "web-1", **changed: Any) -> ObjectEvent:
    event = ObjectEvent(
        regarding=node_reference(name, f"uid of {name}"),
        component="talos-ccm-labeler",
        reason="Synced",
        message="all written",
    )
    return replace(event, **changed)


def add_event(journal: EventJournal, event: ObjectEvent, service: str = "labeler") -> None:
    with telemetry.log_fields(service=service):
        journal.add(event, NOW)


def test_the_events_about_nodes_leave_in_their_order_once_and_with_their_service():
    journal = EventJournal()
    for number in range(MAX_PULSE_EVENTS + 1):
        add_event(journal, make_event(f"web-{number}", type="Warning"))
    add_event(journal, make_event("web-0", reason="CIDRNotAvailable"), service="ipam")
    add_event(journal, make_event(regarding=ObjectReference(kind="Service", name="web", uid="u")))
    [of_ipam] = journal.take("ipam")
    assert (of_ipam.node, of_ipam.uid, of_ipam.reason, of_ipam.type, of_ipam.at) == (
        "web-0",
        "uid of web-0",
        "CIDRNotAvailable",
        "Normal",
        NOW,
    )
    names = [f"web-{number}" for number in range(MAX_PULSE_EVENTS + 1)]
    assert [event.node for event in journal.take("labeler")] == names[:-1]
    assert [event.node for event in journal.take("labeler")] == names[-1:]
    assert (journal.take("labeler"), journal.take("csr")) == ((), ())


def test_of_too_many_events_the_oldest_are_dropped():
    journal = EventJournal()
    for number in range(2100):
        add_event(journal, make_event(f"web-{number}"))
    assert journal.take("labeler")[0].node == "web-100"


async def test_events_wait_for_the_next_pulse_after_a_failed_one():
    bus = UnreliableBus(MemoryServer())
    await bus.provision((NODES,), max_bytes=0)
    journal = EventJournal()
    add_event(journal, make_event("rose"), service="florist")
    services, nothing = [IdleService(FLORIST)], dict[str, tuple[str, ...]](florist=())
    async with run_during(publish_pulses(bus, services, "host_1", lambda: nothing, journal, seconds=0.0)):
        await wait_until(lambda: any(pulse.events for pulse in bus.published))
    [first, *_] = [pulse for pulse in bus.published if pulse.events]
    assert (bus.failures, [event.node for event in first.events]) == (0, ["rose"])
    assert sum(len(pulse.events) for pulse in bus.published) == 1


class UnreliableBus(MemoryBus):
    """Refuses the first two pulses."""

    failures = 2

    async def publish(self, event: Event, **options: Any) -> int:
        if self.failures:
            self.failures -= 1
            raise BusError("no answer")
        assert isinstance(event, Pulse)
        self.published.append(event)
        return await super().publish(event, **options)

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.published: list[Pulse] = []


def test_the_largest_possible_pulse_is_below_the_limit_of_an_event():
    """Each text has as many bytes as possible; a name is one that Kubernetes accepts."""
    journal, name = EventJournal(), "n" * 253
    for _ in range(MAX_PULSE_EVENTS):
        add_event(journal, make_event(name, reason="R" * 30, message="\x01" * 5000))
    block = QuarantinedBlock(block="fd00:1111:2222:3333:4444::/80", node=name, since=NOW, until=NOW)
    ipam = IdleService(IPAM)
    ipam.quarantine = Quarantine(read_at=NOW, count=9**9, blocks=(block,) * MAX_QUARANTINED_BLOCKS)
    events = journal.take("labeler")
    pulse = build_pulse(MemoryBus(MemoryServer()), ipam, "host_1", ("\x01" * 999,) * 9, events)
    assert len(encode(pulse)) < MAX_EVENT_BYTES * 0.9
