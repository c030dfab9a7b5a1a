"""What the reader sees of the flow, as it travels from the watcher's pod to whoever asks. Pure.

The two ends may be of different versions: fields are only added, each with a default.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from libs.common.events import DeadLetter, Event, Leading
from libs.common.subjects import is_publishable_name
from libs.common.timestamp import Timestamp

Kind = Literal["node", "csr"]
_KINDS: Final[tuple[Kind, ...]] = ("node", "csr")


class Object(msgspec.Struct, frozen=True):
    """A Node or a CertificateSigningRequest of which one asks."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class Word(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last message under a subject, and when the server stored it."""

    subject: str
    published_at: Timestamp
    event: Event | None = None
    unreadable: str = ""  # why there is no event


class StreamSeen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stream; `incarnation` is when it was made."""

    incarnation: str
    messages: int = 0
    bytes: int = 0
    max_bytes: int = 0  # 0: without bound
    last_sequence: int = 0


class QueueSeen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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


class ServiceSeen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether somebody does a service's part; None: messages do not tell."""

    service: str
    here: bool | None = None
    why: str = ""


class CertificateSeen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something by which one is trusted, and until when."""

    name: str  # "nats-server", "nats-authority", "talos"
    expires_at: Timestamp


class ObjectSeen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last words about an object, those of the services in the order of the flow."""

    object: Object
    observed: Word | None = None  # the watcher's
    enriched: Word | None = None  # metadata's
    decided: tuple[Word, ...] = ()
    dead: tuple[Word, ...] = ()


class FlowSeen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="FlowSeen.v1"):
    """All of it, at one moment of the reader's clock."""

    at: Timestamp
    stream: StreamSeen | None = None  # None: NATS is there, and the stream is not
    queues: tuple[QueueSeen, ...] = ()
    leading: Word | None = None  # who leads: the event is a Leading
    snapshot: Word | None = None  # the watcher's last SnapshotComplete
    networks: Word | None = None  # the cluster's networks, as metadata heard them
    dead: tuple[Word, ...] = ()  # dead letters, the newest first, some at most
    dead_count: int = 0  # how many there are
    services: tuple[ServiceSeen, ...] = ()
    objects: tuple[ObjectSeen, ...] = ()
    certificates: tuple[CertificateSeen, ...] = ()  # of NATS, where it speaks TLS

    @property
    def leader(self) -> Leading | None:
        """Who leads, as they said last."""
        return self.leading.event if self.leading and isinstance(self.leading.event, Leading) else None

    @property
    def leading_seconds(self) -> float | None:
        """How old their last word is."""
        return (self.at - self.leading.published_at).total_seconds() if self.leading else None

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Those of `dead` that can be read."""
        return tuple(word.event for word in self.dead if isinstance(word.event, DeadLetter))

    def of(self, kind: Kind, name: str) -> ObjectSeen | None:
        """What was said of an object, None if nobody asked."""
        return next((one for one in self.objects if one.object == Object(kind, name)), None)


class Unknown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="Unknown.v1"):
    """It cannot be told; says why, and what to do about it."""

    reason: str
    all_in_one: bool = False  # there are no messages to see: the services run in one process


Answer = FlowSeen | Unknown
_decoder: Final[msgspec.json.Decoder[Answer]] = msgspec.json.Decoder(Answer)


def objects_of(words: Sequence[str]) -> tuple[Object, ...]:
    """Of "node/web-1" and the like. Raises ValueError."""
    return tuple(map(_object_of, words))


def _object_of(word: str) -> Object:
    kind, _, name = word.partition("/")
    for known in _KINDS:
        if kind == known and name:
            return Object(known, name)
    raise ValueError(f'"{word}" is neither node/NAME nor csr/NAME')


def is_spoken_of(about: Object) -> bool:
    """Whether messages can name it."""
    return is_publishable_name(about.name)


def encoded(answer: Answer) -> bytes:
    """As it travels."""
    return msgspec.json.encode(answer)


def decoded(data: bytes) -> Answer:
    """Raises ValueError on what is none."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not what `inside flow` says: {error}") from error


def certificates_encoded(certificates: tuple[CertificateSeen, ...]) -> bytes:
    """As they travel."""
    return msgspec.json.encode(certificates)


def certificates_decoded(data: bytes) -> tuple[CertificateSeen, ...]:
    """Raises ValueError on what is none."""
    try:
        return msgspec.json.decode(data, type=tuple[CertificateSeen, ...])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not what `inside certificates` says: {error}") from error
