"""What a pulse says of its service: its errors since the process began, its lag, and why it is not ready."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.protocol import BusError, StreamFull, WrongLastSequence
from libs.common.contract.events import Event, Pulse, Quarantine
from libs.common.contract.services import CONSOLE, IPAM, LABELER, METADATA, ServiceSpec, expand_cloud
from libs.common.contract.subjects import DEAD_LETTERS, DECIDED, PULSES
from libs.common.observability import metrics, telemetry
from libs.common.service.error_counts import count_errors
from libs.common.service.open_bus import bus_hooks, observe_kubernetes
from libs.common.service.pulse_publisher import build_pulse, publish_pulses
from tests.builders import NOW
from tests.bus_actors import NODES, run_during, wait_for_value

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

    async with run_during(publish_pulses(bus, services, "host_1", lambda: checks, seconds=0.0)):
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
