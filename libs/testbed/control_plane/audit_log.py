"""kube-apiserver's audit log (audit.k8s.io/v1): counts of requests, writes about Nodes and their fields."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec
from msgspec import field

_LONGEST_LINE: Final = 1 << 20  # at level Metadata a line has one or two kB


class AuditedRequest(NamedTuple):
    """The key of a count. `user` is the impersonated one, if there is one."""

    user: str
    verb: str
    resource: str  # with its subresource, such as "nodes/status"; the path of other URLs
    succeeded: bool = True  # False from status 400 on, for example if a fence rejected a patch
    forbidden: bool = False  # status 403: the user lacks the right


def count_requests(log: Iterable[bytes]) -> Counter[AuditedRequest]:
    """Count requests; a watch counts when it opens, other requests when they are answered."""
    return Counter(
        AuditedRequest(
            entry.user,
            entry.verb,
            entry.resource,
            entry.succeeded,
            forbidden=entry.code == HTTPStatus.FORBIDDEN,
        )
        for entry in read_answered_requests(log)
    )


def find_last_line_end(log: BinaryIO) -> int:
    """Return the end of the last complete line; an incomplete one may follow."""
    size = log.seek(0, os.SEEK_END)
    start = max(0, size - _LONGEST_LINE)
    log.seek(start)
    return start + log.read(size - start).rfind(b"\n") + 1


WRITE_VERBS: Final = ("create", "update", "patch", "delete")


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Target(msgspec.Struct, frozen=True):
    resource: str = ""
    subresource: str = ""
    name: str = ""


class _Status(msgspec.Struct, frozen=True):
    code: int = 200


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One stage of one request. Bodies and answers are only in a log with `audit_fields`."""

    stage: str = "ResponseComplete"
    verb: str
    requester: _User = field(name="user")
    received: datetime = field(name="requestReceivedTimestamp")
    answered: datetime = field(name="stageTimestamp")
    request_uri: str = field(name="requestURI", default="")
    impersonated_user: _User | None = None
    sources: tuple[str, ...] = field(name="sourceIPs", default=())
    target: _Target = field(name="objectRef", default=_Target())
    response_status: _Status = _Status()
    body: Any = field(name="requestObject", default=None)
    answer: Any = field(name="responseObject", default=None)

    @property
    def user(self) -> str:
        """The impersonated user, if there is one."""
        return (self.impersonated_user or self.requester).username

    @property
    def resource(self) -> str:
        """The resource with its subresource, such as "nodes/status"; the path of other URLs."""
        target = self.target
        if not target.resource:
            return self.request_uri.partition("?")[0]
        return f"{target.resource}/{target.subresource}" if target.subresource else target.resource

    @property
    def about(self) -> str:
        """The name of the object, which in a creation only the body has; for an Event, of its object."""
        body = self.body if isinstance(self.body, dict) else {}
        if self.resource == "events":
            return str(body.get("involvedObject", {}).get("name", ""))
        return self.target.name or str(body.get("metadata", {}).get("name", ""))

    @property
    def code(self) -> int:
        """The HTTP status."""
        return self.response_status.code

    @property
    def succeeded(self) -> bool:
        """False from status 400 on, for example if a fence rejected a patch."""
        return self.code < HTTPStatus.BAD_REQUEST


_DECODER: Final = msgspec.json.Decoder(AuditEntry)
_BEGINNING: Final = (
    b'{"kind":"Event","apiVersion":"audit.k8s.io/v1"'  # a text within an entry has escaped quotes
)


def read_answered_requests(log: Iterable[bytes]) -> Iterator[AuditEntry]:
    """Read one entry per request: a watch counts when it opens, other requests when they are answered.

    The last line is ignored if it is not completely written yet, as is the part of an entry that
    kube-apiserver was writing when it was killed: the next entry follows it in the same line.
    """
    for line in log:
        if not line.endswith(b"\n"):
            return
        entry = _decode_last_entry(line)
        if entry.stage == ("ResponseStarted" if entry.verb == "watch" else "ResponseComplete"):
            yield entry


def _decode_last_entry(line: bytes) -> AuditEntry:
    """The entry that ends the line. Raises msgspec.DecodeError if no complete one does."""
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError:
        begin = line.rfind(_BEGINNING)
        if begin <= 0:
            raise
    return _DECODER.decode(line[begin:])


# The key fields of list elements: two controllers may each have their own taints.
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "spec.taints": ("key", "effect"),
    "status.conditions": ("type",),
}
_ABOUT_NODES: Final = ("nodes", "nodes/status", "events", "certificatesigningrequests/approval")
_EVENTS_ABOUT: Final = ("Node", "CertificateSigningRequest")
_BOOKKEEPING: Final = ("metadata.resourceVersion", "metadata.managedFields", "metadata.generation")


class FieldChange(NamedTuple):
    """A write changed one field of a Node."""

    user: str
    node: str
    field: str  # such as "metadata.labels[team]" or "spec.taints[a/b:NoSchedule].value"


def list_node_writes(log: Iterable[bytes]) -> list[AuditEntry]:
    """List the writes to Nodes, approvals and the Events about both, in the order of their responses."""
    return [
        entry
        for entry in read_answered_requests(log)
        if _is_about_nodes(entry) and (entry.resource != "events" or _get_event_kind(entry) in _EVENTS_ABOUT)
    ]


def list_changes(log: Iterable[bytes]) -> list[FieldChange]:
    """List the fields that each write changed, by comparing each state of a Node with the previous one.

    The log must contain the creation of the Nodes: without a previous state every field counts as changed.
    """
    states: dict[str, list[tuple[int, str, dict[str, Any]]]] = {}
    for entry in filter(_is_about_nodes, read_answered_requests(log)):
        node = entry.answer
        if entry.succeeded and isinstance(node, dict) and node.get("kind") == "Node":
            version = int(node["metadata"]["resourceVersion"])
            states.setdefault(node["metadata"]["uid"], []).append((version, entry.user, node))
    return [change for history in states.values() for change in _compare_states(history)]


def _compare_states(history: list[tuple[int, str, dict[str, Any]]]) -> Iterator[FieldChange]:
    before: dict[str, Any] = {}
    for _, user, node in sorted(history, key=lambda state: state[0]):
        after = dict(list_leaf_fields(node))
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name) and not name.startswith(_BOOKKEEPING):
                yield FieldChange(user, node["metadata"]["name"], name)
        before = after


def list_leaf_fields(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each leaf; a list is one leaf unless its elements have keys."""
    keys = _KEYS.get(at)
    if keys is not None:
        for element in value:
            yield from list_leaf_fields(element, f"{at}[{':'.join(element.get(key, '') for key in keys)}]")
    elif isinstance(value, dict):
        is_map = at in ("metadata.labels", "metadata.annotations")
        for key, inner in value.items():
            yield from list_leaf_fields(inner, f"{at}[{key}]" if is_map else f"{at}.{key}".lstrip("."))
    else:
        yield at, value


def _is_about_nodes(entry: AuditEntry) -> bool:
    return entry.verb in WRITE_VERBS and entry.resource in _ABOUT_NODES


def _get_event_kind(event: AuditEntry) -> str:
    return str((event.body or {}).get("involvedObject", {}).get("kind", ""))
