"""The flow as the reader sees it, as JSON from the watcher's pod. Pure.

Pod and caller may have different versions: fields are only added, each with a default.
"""

from datetime import datetime, timedelta
from typing import Final, Literal, TypeVar

import msgspec

from libs.common.contract.events import Event, Leading
from libs.common.contract.services import SERVICES
from libs.common.contract.subjects import subject_of
from libs.common.contract.timestamp import Timestamp

NATS_SILENT: Final = "NATS does not answer"
Kind = Literal["node", "csr"]
E = TypeVar("E")
RENEWED_BEFORE: Final = {
    "nats-server": timedelta(days=90),  # the keeper renews it a third of a year before its end
    "nats-authority": timedelta(days=365),  # nothing renews it automatically
    "talos": timedelta(minutes=30),
}


class FlowObject(msgspec.Struct, frozen=True):
    """A Node or a CertificateSigningRequest to query."""

    kind: Kind
    name: str


class LastMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last message of one subject and the time at which the server stored it."""

    subject: str
    published_at: Timestamp
    event: Event | None = None
    unreadable: str = ""  # why there is no event

    @property
    def is_misplaced(self) -> bool:
        """Whether it claims to be from elsewhere: the key of an account may write any body."""
        return self.event is not None and subject_of(self.event) != self.subject


class StreamSnapshot(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The size of the stream, as in the JSON output of status."""

    created: str  # its ID
    messages: int = 0
    bytes: int = 0
    max_bytes: int | None = None  # None: unlimited


class ConsumerSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a durable consumer: pending messages, and whether a client pulls."""

    name: str
    service: str
    exists: bool = True
    pending: int = 0  # not delivered yet
    unacknowledged: int = 0  # delivered, being processed
    redelivered: int = 0  # of the unacknowledged ones: delivered more than once
    waiting: int = 0  # open pull requests; an active consumer has one unless it is at its limit
    delivered_at: Timestamp | None = None
    acknowledged_at: Timestamp | None = None


class ServicePresence(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a service is running; None if its messages and consumers do not show it."""

    service: str
    is_present: bool | None
    why: str


class CertificateSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A certificate and its expiry."""

    name: str  # "nats-server", "nats-authority", "talos"
    expires_at: Timestamp

    def is_overdue(self, at: datetime) -> bool:
        """Whether it should have been renewed by then, by the same thresholds as the alerts."""
        return at + RENEWED_BEFORE.get(self.name, timedelta()) >= self.expires_at


class ObjectMessages(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last messages about an object, in the order of the flow."""

    object: FlowObject
    messages: tuple[LastMessage, ...] = ()

    def list_events(self, kind: type[E]) -> tuple[E, ...]:
        """Return the events of this type, without those that claim to be from elsewhere."""
        return tuple(
            each.event for each in self.messages if isinstance(each.event, kind) and not each.is_misplaced
        )


class FlowSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="FlowSeen.v1"):
    """The flow at one moment of the reader's clock."""

    at: Timestamp
    stream: StreamSnapshot | None = None  # None: NATS answers, and the stream does not exist
    queues: tuple[ConsumerSnapshot, ...] = ()
    leading: LastMessage | None = None  # the last leader heartbeat: its event is a Leading
    networks: LastMessage | None = None  # the cluster networks that metadata published
    dead: tuple[LastMessage, ...] = ()  # the dead letters that were read, newest first
    dead_count: int = 0  # the number of all dead letters
    objects: tuple[ObjectMessages, ...] = ()
    accounts: tuple[LastMessage, ...] = ()  # of clouds: their events are AccountReports
    blocked_services: tuple[LastMessage, ...] = ()  # KubeServiceObserved, of blocked load balancers
    certificates: tuple[CertificateSnapshot, ...] = ()  # of NATS, if it uses TLS

    @property
    def leader(self) -> Leading | None:
        """Return the last leader heartbeat; None without one."""
        return self.leading.event if self.leading and isinstance(self.leading.event, Leading) else None

    @property
    def leader_heartbeat_seconds(self) -> float | None:
        """Return the age of the last leader heartbeat."""
        return (self.at - self.leading.published_at).total_seconds() if self.leading else None

    @property
    def services(self) -> tuple[ServicePresence, ...]:
        """Return for each known service, installed or not, whether its consumer or its heartbeat shows it."""
        queues = {queue.service: queue for queue in self.queues}
        found = []
        for spec in SERVICES if self.stream else ():
            if spec.provisions_stream:
                is_present, why = _check_leader(self.leader_heartbeat_seconds)
            else:
                is_present, why = _check_consumer(queues.get(spec.service))
            found.append(ServicePresence(service=spec.service, is_present=is_present, why=why))
        return tuple(found)

    def find_object(self, kind: Kind, name: str) -> ObjectMessages | None:
        """Return the messages about an object; None if it was not queried."""
        return next((one for one in self.objects if one.object == FlowObject(kind, name)), None)


class FlowUnavailable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="Unknown.v1"):
    """The flow is unavailable; `reason` also says what to do."""

    reason: str
    # all services run in one process, so there are no messages
    is_all_in_one: bool = msgspec.field(default=False, name="all_in_one")

    @property
    def nats_error(self) -> str | None:
        """Return the error of the connection to NATS; None if NATS is not the cause."""
        if not self.reason.startswith(NATS_SILENT):
            return None
        return self.reason.removeprefix(NATS_SILENT).lstrip(": ")


FlowResult = FlowSnapshot | FlowUnavailable
FLOW_DECODER: Final[msgspec.json.Decoder[FlowResult]] = msgspec.json.Decoder(FlowResult)


def _check_consumer(queue: ConsumerSnapshot | None) -> tuple[bool | None, str]:
    if queue is None:  # a follower's consumers have names that the reader does not know
        return None, "unknown: it has no durable consumer"
    if not queue.exists:
        return False, f"its consumer {queue.name} does not exist"
    if queue.waiting:
        return True, f"pulls from {queue.name}"
    if queue.unacknowledged:
        return None, f"no client pulls from {queue.name}, but some messages are unacknowledged"
    return False, f"no client pulls from {queue.name}"


def _check_leader(heartbeat_seconds: float | None) -> tuple[bool | None, str]:
    if heartbeat_seconds is None:
        return False, "no leader heartbeat"
    return True, f"leader heartbeat {max(0, heartbeat_seconds):.0f} s ago"
