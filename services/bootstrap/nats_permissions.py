"""Derives the NATS permissions of each user from the service specs: its subjects and JetStream requests."""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.contract.service_spec import ServiceSpec
from libs.common.contract.services import DURABLES, READER_USER
from libs.common.contract.subjects import FLOW, ROOT, STREAM

SYSTEM_USER: Final = "system"  # requests that a server reloads its configuration
_API: Final = "$JS.API"
_CONSUMER: Final = f"{_API}.CONSUMER"
_FORBIDDEN_STREAM_VERBS: Final = (
    *("DELETE", "PURGE", "MSG.DELETE", "MSG.GET", "SNAPSHOT", "RESTORE"),
    *("LEADER.STEPDOWN", "PEER.REMOVE"),
)
_FORBIDDEN_CONSUMER_VERBS: Final = ("PAUSE", "LEADER.STEPDOWN")


class NatsPermissions(msgspec.Struct, frozen=True, kw_only=True):
    """The subjects to which a user may publish, minus the denied ones, and those that it may receive."""

    allow_publish: tuple[str, ...]
    deny_publish: tuple[str, ...] = ()
    allow_subscribe: tuple[str, ...]


def build_service_permissions(wiring: ServiceSpec) -> NatsPermissions:
    """Return the permissions of a service.

    A reply subject needs no permission: the server replies to any subject, also to one of the stream. So a
    service that publishes outside the flow may only read the flow. Otherwise it could let the server publish
    its own messages to the flow.
    """
    own = [durable.name for durable in wiring.durables]
    return NatsPermissions(
        allow_publish=(
            *wiring.publishes,
            f"{_API}.STREAM.INFO.{STREAM}",
            f"{_API}.DIRECT.GET.{STREAM}.{FLOW}.>",
            *_ordered_consumer_subjects(wiring.follows),
            *_durable_subjects(own),
            *(_provisioning_subjects() if wiring.provisions_stream else ()),
        ),
        deny_publish=() if wiring.provisions_stream else _foreign_durable_subjects(own),
        allow_subscribe=_inbox_subjects(wiring.service),
    )


def build_reader_permissions() -> NatsPermissions:
    """Return the permissions of the read-only user: it reads the whole stream and publishes nothing."""
    return NatsPermissions(
        allow_publish=(
            f"{_API}.STREAM.INFO.{STREAM}",
            f"{_API}.DIRECT.GET.{STREAM}.{ROOT}.>",
            *_ordered_consumer_subjects((f"{FLOW}.>",)),
            *(f"{_CONSUMER}.INFO.{STREAM}.{durable.name}" for durable in DURABLES),  # for pending counts
        ),
        deny_publish=_foreign_durable_subjects([]),
        allow_subscribe=_inbox_subjects(READER_USER),
    )


def build_system_permissions() -> NatsPermissions:
    """Return the permissions of the bootstrap: it may only request a reload of the configuration."""
    return NatsPermissions(
        allow_publish=("$SYS.REQ.SERVER.*.RELOAD",), allow_subscribe=_inbox_subjects(SYSTEM_USER)
    )


def list_forbidden_requests() -> tuple[str, ...]:
    """Return the requests that no user may send, not even through a reply subject."""
    return (
        *(f"{_API}.STREAM.{verb}.{STREAM}" for verb in _FORBIDDEN_STREAM_VERBS),
        *(
            f"{_CONSUMER}.{verb}.{STREAM}.{durable.name}"
            for verb in _FORBIDDEN_CONSUMER_VERBS
            for durable in DURABLES
        ),
    )


def _inbox_subjects(user: str) -> tuple[str, ...]:
    return (f"_INBOX_{user}.>",)


def _ordered_consumer_subjects(filters: Iterable[str]) -> tuple[str, ...]:
    """Return the subjects for a follower's own consumer, whose name is random."""
    created = [f"{_CONSUMER}.CREATE.{STREAM}.*.{each}" for each in filters]
    if not created:
        return ()
    return (*created, f"{_CONSUMER}.MSG.NEXT.{STREAM}.*", f"{_CONSUMER}.DELETE.{STREAM}.*")


def _durable_subjects(durables: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        subject
        for name in durables
        for subject in (
            f"{_CONSUMER}.INFO.{STREAM}.{name}",
            f"{_CONSUMER}.MSG.NEXT.{STREAM}.{name}",
            f"$JS.ACK.{STREAM}.{name}.>",
        )
    )


def _provisioning_subjects() -> tuple[str, ...]:
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


def _foreign_durable_subjects(own: Iterable[str]) -> tuple[str, ...]:
    """Return the subjects of durables that the permissions for a follower's consumer would include.

    Only the watcher creates and deletes durables, and only its service reads one.
    """
    made = [f"{_CONSUMER}.{verb}.{STREAM}.{d.name}" for d in DURABLES for verb in ("CREATE", "DELETE")]
    read = [f"{_CONSUMER}.MSG.NEXT.{STREAM}.{d.name}" for d in DURABLES if d.name not in own]
    return (*(f"{each}.>" if ".CREATE." in each else each for each in made), *read)
