"""What each identity may say to NATS, from the wiring: its subjects, and JetStream for its part there."""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.subjects import FLOW, ROOT, STREAM
from libs.common.wiring import DURABLES, READER, Wiring

SYSTEM: Final = "system"  # who has a server reload its configuration
_API: Final = "$JS.API"
_CONSUMER: Final = f"{_API}.CONSUMER"
_NOBODYS_OF_STREAM: Final = (
    *("DELETE", "PURGE", "MSG.DELETE", "MSG.GET", "SNAPSHOT", "RESTORE"),
    *("LEADER.STEPDOWN", "PEER.REMOVE"),
)
_NOBODYS_OF_DURABLES: Final = ("PAUSE", "LEADER.STEPDOWN")


class NatsRights(msgspec.Struct, frozen=True, kw_only=True):
    """Subjects that may be published to, less the denied ones, and those that may be heard."""

    publish: tuple[str, ...]
    deny: tuple[str, ...] = ()
    subscribe: tuple[str, ...]


def service_rights(wiring: Wiring) -> NatsRights:
    """Those of a service.

    A reply subject needs no right: the server answers to whatever subject is named, the stream's own among
    them. So who publishes outside the flow may read the flow alone, or it could have the server publish
    its words there.
    """
    own = [durable.name for durable in wiring.durables]
    return NatsRights(
        publish=(
            *wiring.publishes,
            f"{_API}.STREAM.INFO.{STREAM}",
            f"{_API}.DIRECT.GET.{STREAM}.{FLOW}.>",
            *_following(wiring.follows),
            *_consuming(own),
            *(_provisioning() if wiring.provisions_stream else ()),
        ),
        deny=() if wiring.provisions_stream else _others_durables(own),
        subscribe=_inbox(wiring.service),
    )


def reader_rights() -> NatsRights:
    """Those of who only looks: all of the stream, and nothing to say."""
    return NatsRights(
        publish=(
            f"{_API}.STREAM.INFO.{STREAM}",
            f"{_API}.DIRECT.GET.{STREAM}.{ROOT}.>",
            *_following((f"{FLOW}.>",)),
            *(f"{_CONSUMER}.INFO.{STREAM}.{durable.name}" for durable in DURABLES),  # how deep queues are
        ),
        deny=_others_durables([]),
        subscribe=_inbox(READER),
    )


def system_rights() -> NatsRights:
    """Those of the bootstrap: no more than having a server read its configuration again."""
    return NatsRights(publish=("$SYS.REQ.SERVER.*.RELOAD",), subscribe=_inbox(SYSTEM))


def nobodys_requests() -> tuple[str, ...]:
    """Requests that nobody may send, and that a reply subject, which needs no right, must not send either."""
    return (
        *(f"{_API}.STREAM.{verb}.{STREAM}" for verb in _NOBODYS_OF_STREAM),
        *(
            f"{_CONSUMER}.{verb}.{STREAM}.{durable.name}"
            for verb in _NOBODYS_OF_DURABLES
            for durable in DURABLES
        ),
    )


def _inbox(user: str) -> tuple[str, ...]:
    return (f"_INBOX_{user}.>",)


def _following(filters: Iterable[str]) -> tuple[str, ...]:
    """A follower's own consumer has a name that nobody can know beforehand."""
    created = [f"{_CONSUMER}.CREATE.{STREAM}.*.{each}" for each in filters]
    if not created:
        return ()
    return (*created, f"{_CONSUMER}.MSG.NEXT.{STREAM}.*", f"{_CONSUMER}.DELETE.{STREAM}.*")


def _consuming(durables: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        subject
        for name in durables
        for subject in (
            f"{_CONSUMER}.INFO.{STREAM}.{name}",
            f"{_CONSUMER}.MSG.NEXT.{STREAM}.{name}",
            f"$JS.ACK.{STREAM}.{name}.>",
        )
    )


def _provisioning() -> tuple[str, ...]:
    return (
        f"{_API}.STREAM.CREATE.{STREAM}",
        f"{_API}.STREAM.UPDATE.{STREAM}",
        *(
            f"{_CONSUMER}.{verb}.{STREAM}.{durable.name}"
            for durable in DURABLES
            for verb in ("INFO", "DELETE")
        ),
        *(f"{_CONSUMER}.CREATE.{STREAM}.{durable.name}.{durable.filter}" for durable in DURABLES),
    )


def _others_durables(own: Iterable[str]) -> tuple[str, ...]:
    """The rights to a follower's consumer would reach durables, too: the watcher's to make, one's to read."""
    made = [f"{_CONSUMER}.{verb}.{STREAM}.{d.name}" for d in DURABLES for verb in ("CREATE", "DELETE")]
    read = [f"{_CONSUMER}.MSG.NEXT.{STREAM}.{d.name}" for d in DURABLES if d.name not in own]
    return (*(f"{each}.>" if ".CREATE." in each else each for each in made), *read)
