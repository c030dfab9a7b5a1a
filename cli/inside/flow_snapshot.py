"""What the reader sees of the flow, as it travels from the watcher's pod to whoever asks. Pure.

The two ends may be of different versions: fields are only added, each with a default.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from libs.common.contract.events import DeadLetter, Event, Leading
from libs.common.contract.subjects import is_publishable_name
from libs.common.contract.timestamp import Timestamp

Kind = Literal["node", "csr"]
_KINDS: Final[tuple[Kind, ...]] = ("node", "csr")


class FlowObject(msgspec.Struct, frozen=True):
    """A Node or a CertificateSigningRequest of which one asks."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class LastMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last message under a subject, and when the server stored it."""

    subject: str
    published_at: Timestamp
    event: Event | None = None
    unreadable: str = ""  # why there is no event


class StreamSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stream; `incarnation` is when it was made."""

    stream_id: str = msgspec.field(name="incarnation")
    messages: int = 0
    bytes: int = 0
    max_bytes: int = 0  # 0: without bound
    last_sequence: int = 0


class ConsumerSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A durable: what waits in it, and whether anybody takes from it."""

    name: str
    service: str
    exists: bool = True
    pending: int = 0  # not delivered yet
    unacknowledged: int = 0  # delivered, and being handled
    redelivered: int = 0  # of them: those that came more than once
    waiting: int = 0  # requests for more: a consumer that is there has one, but while it has its hands full
    delivered_at: Timestamp | None = None
    acknowledged_at: Timestamp | None = None


class ServicePresence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether somebody does a service's part; None: messages do not tell."""

    service: str
    is_present: bool | None = msgspec.field(default=None, name="here")
    why: str = ""


class CertificateSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something by which one is trusted, and until when."""

    name: str  # "nats-server", "nats-authority", "talos"
    expires_at: Timestamp


class ObjectMessages(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last words about an object, those of the services in the order of the flow."""

    object: FlowObject
    observed: LastMessage | None = None  # the watcher's
    enriched: LastMessage | None = None  # metadata's
    decided: tuple[LastMessage, ...] = ()
    dead: tuple[LastMessage, ...] = ()


class FlowSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="FlowSeen.v1"):
    """All of it, at one moment of the reader's clock."""

    at: Timestamp
    stream: StreamSnapshot | None = None  # None: NATS is there, and the stream is not
    queues: tuple[ConsumerSnapshot, ...] = ()
    leading: LastMessage | None = None  # who leads: the event is a Leading
    snapshot: LastMessage | None = None  # the watcher's last SnapshotComplete
    networks: LastMessage | None = None  # the cluster's networks, as metadata heard them
    dead: tuple[LastMessage, ...] = ()  # dead letters, the newest first, some at most
    dead_count: int = 0  # how many there are
    services: tuple[ServicePresence, ...] = ()
    objects: tuple[ObjectMessages, ...] = ()
    certificates: tuple[CertificateSnapshot, ...] = ()  # of NATS, where it speaks TLS

    @property
    def leader(self) -> Leading | None:
        """Who leads, as they said last."""
        return self.leading.event if self.leading and isinstance(self.leading.event, Leading) else None

    @property
    def leader_heartbeat_seconds(self) -> float | None:
        """How old their last word is."""
        return (self.at - self.leading.published_at).total_seconds() if self.leading else None

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Those of `dead` that can be read."""
        return tuple(word.event for word in self.dead if isinstance(word.event, DeadLetter))

    def find_object(self, kind: Kind, name: str) -> ObjectMessages | None:
        """What was said of an object, None if nobody asked."""
        return next((one for one in self.objects if one.object == FlowObject(kind, name)), None)


class FlowUnavailable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="Unknown.v1"):
    """It cannot be told; says why, and what to do about it."""

    reason: str
    # there are no messages to see: the services run in one process
    is_all_in_one: bool = msgspec.field(default=False, name="all_in_one")


FlowResult = FlowSnapshot | FlowUnavailable
_decoder: Final[msgspec.json.Decoder[FlowResult]] = msgspec.json.Decoder(FlowResult)


def parse_objects(words: Sequence[str]) -> tuple[FlowObject, ...]:
    """Of "node/web-1" and the like. Raises ValueError."""
    return tuple(map(_parse_object, words))


def _parse_object(word: str) -> FlowObject:
    kind, _, name = word.partition("/")
    for known in _KINDS:
        if kind == known and name:
            return FlowObject(known, name)
    raise ValueError(f'"{word}" is neither node/NAME nor csr/NAME')


def is_addressable(about: FlowObject) -> bool:
    """Whether messages can name it."""
    return is_publishable_name(about.name)


def encode_result(answer: FlowResult) -> bytes:
    """As it travels."""
    return msgspec.json.encode(answer)


def decode_result(data: bytes) -> FlowResult:
    """Raises ValueError on what is none."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not what `inside flow` says: {error}") from error


def encode_certificates(certificates: tuple[CertificateSnapshot, ...]) -> bytes:
    """As they travel."""
    return msgspec.json.encode(certificates)


def decode_certificates(data: bytes) -> tuple[CertificateSnapshot, ...]:
    """Raises ValueError on what is none."""
    try:
        return msgspec.json.decode(data, type=tuple[CertificateSnapshot, ...])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not what `inside certificates` says: {error}") from error
