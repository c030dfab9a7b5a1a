"""Opens the bus of a process, records metrics and spans of adapters, and detects a standby."""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.protocol import Bus, BusError, BusHooks, StreamFull, WrongLastSequence
from libs.common.contract.subjects import PULSES, ROOT
from libs.common.observability import metrics, telemetry
from libs.common.observability.telemetry import context_field
from libs.common.service.service import Service, ServiceDefinition
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import SettingsError

if TYPE_CHECKING:
    from libs.common.bus.nats.nats_access import NatsAccess

log = logging.getLogger(__name__)

_WRITES: Final = frozenset({"create", "update", "patch", "delete"})
# Cached: finding a series by its labels costs more than counting. The code bounds the number of label values.
_requests = cache(metrics.KUBE_REQUESTS.labels)
_request_durations = cache(metrics.KUBE_REQUEST_DURATION.labels)
_node_writes = cache(metrics.NODE_WRITES.labels)
_publishes = cache(metrics.PUBLISHED.labels)
# Writes that a joining Node causes. Leases are left out: they are renewed all the time.
_OF_NODES: Final = frozenset(
    {"nodes", "nodes/status", "events", "certificatesigningrequests/approval", "configmaps"}
)


_NOT_ALONE: Final = (
    "--bus=memory works only with `python -m services`, which runs all services in one process; "
    "use --bus=nats --nats-url=nats://host:4222"
)


def bus_hooks(services: Sequence[str]) -> BusHooks:
    """Return the hooks for a bus that these services share."""
    connected = [metrics.NATS_CONNECTED.labels(service) for service in services]

    def usable(value: int) -> None:
        for gauge in connected:
            gauge.set(value)

    usable(0)
    return BusHooks(
        published=lambda subject: _publishes(subject_class(subject), "published").inc(),
        publish_failed=lambda subject, error: _publishes(subject_class(subject), _outcome(error)).inc(),
        connected=lambda: usable(1),
        disconnected=lambda reason: usable(0),
        permission_violation=lambda text: metrics.NATS_PERMISSION_VIOLATIONS.inc(),
    )


def observe_kubernetes(verb: str, resource: str, status: int, seconds: float) -> None:
    """Record a request to the Kubernetes API in metrics and in the trace; status 0 = no response."""
    service = str(context_field("service") or "none")
    _requests(service, verb, resource, str(status or "none")).inc()
    if verb == "watch":
        return
    if verb in _WRITES and resource in _OF_NODES and 200 <= status < 300:
        _node_writes(service, resource).inc()
    _request_durations(verb, resource).observe(seconds)
    if telemetry.tracing_is_on():
        attributes: dict[str, telemetry.Attribute] = {
            "k8s.request.verb": verb,
            "k8s.request.resource": resource,
            "http.response.status_code": status,
        }
        telemetry.record(f"{verb} {resource}", seconds=seconds, attributes=attributes)


def subject_class(subject: str) -> str:
    """Return the subject without root and object name: "flow.observed.node", "decided.labeler.node".

    And without the instance of a pulse, which is another one after each restart.
    """
    count = 2 if subject.startswith(f"{PULSES}.") else 3
    return ".".join(subject.removeprefix(ROOT + ".").split(".")[:count])


def _outcome(error: BusError) -> str:
    match error:
        case WrongLastSequence():
            return "superseded"
        case StreamFull():
            return "stream_full"
        case _:
            return "failed"


def validate_bus(definitions: Sequence[ServiceDefinition[Any]], settings: ProcessSettings) -> None:
    """Check that these services can use the configured bus. Raises SettingsError.

    It also validates the contents of the key file and the CA file, so that a mistake is reported as a mistake
    in the settings. Later the process only reads them again.
    """
    alone = len(definitions) == 1
    if alone and settings.bus == "memory":
        raise SettingsError(_NOT_ALONE)
    if not settings.uses_memory_bus(is_standalone=alone):
        _validate_file("--nats-nkey-file", lambda: _access(settings, "").read_seed())
        _validate_file("--nats-ca-file", lambda: _access(settings, "").tls_context())


def _validate_file(flag: str, read: Callable[[], object]) -> None:
    try:
        read()
    except BusError as error:
        raise SettingsError(f"{flag} {error}") from error


def _access(settings: ProcessSettings, service: str) -> "NatsAccess":
    # Imported here: loading the NATS library takes a tenth of the start-up time of a process.
    from libs.common.bus.nats.nats_access import NatsAccess  # noqa: PLC0415

    return NatsAccess(
        servers=settings.nats_servers,
        service=service,
        nkey_seed_file=settings.nats_nkey_file,
        tls_ca_file=settings.nats_ca_file,
    )


async def open_bus(
    definitions: Sequence[ServiceDefinition[Any]], settings: ProcessSettings, name: str
) -> Bus:
    """Open the bus of a process; an unreachable NATS is a readiness problem, not an error."""
    if settings.uses_memory_bus(is_standalone=len(definitions) == 1):
        log.info("using in-memory bus")
        return MemoryBus(MemoryServer(), hooks=bus_hooks([]))  # no service is connected to NATS
    from libs.common.bus.nats.bus import NatsBus  # noqa: PLC0415 - as above

    return await NatsBus.connect(
        settings.nats_servers,
        service=name,
        nkey_seed_file=settings.nats_nkey_file,
        tls_ca_file=settings.nats_ca_file,
        hooks=bus_hooks([run.spec.service for run in definitions]),
        stream_replicas=settings.nats_stream_replicas,
    )


def is_standby(bus: Bus, services: Sequence[Service]) -> bool:
    """Return whether another process leads, so that the services of this one need not be ready.

    On NATS the services of a standby follow the leader's messages. On the in-memory bus they receive no
    message until this process leads. Then only its watcher counts, which is ready as long as it can read the
    leader's Lease.
    """
    if not isinstance(bus, MemoryBus) or bus.stream_id:
        return False
    return all(not service.problems() for service in services if service.spec.provisions_stream)
