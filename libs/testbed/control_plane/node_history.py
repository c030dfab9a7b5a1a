"""Who wrote what about Nodes, and who changed which field, from an audit log with the states of Nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import field

_WRITES: Final = ("create", "update", "patch", "delete")
# What identifies an element of a list: two controllers may each have taints of their own.
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "spec.taints": ("key", "effect"),
    "status.conditions": ("type",),
}
ABOUT_NODES: Final = ("nodes", "nodes/status", "events", "certificatesigningrequests/approval")
_EVENTS_ABOUT: Final = ("Node", "CertificateSigningRequest")
_BOOKKEEPING: Final = ("metadata.resourceVersion", "metadata.managedFields", "metadata.generation")


class FieldChange(NamedTuple):
    """One field of one Node has another value than before."""

    user: str
    node: str
    field: str  # such as "metadata.labels[team]" or "spec.taints[a/b:NoSchedule].value"


class WriteRequest(NamedTuple):
    """A request that was to write, whatever became of it."""

    user: str
    verb: str
    resource: str  # with its subresource, such as "nodes/status"
    about: str  # name of the object; of an Event that of the Node or request which it is about
    code: int  # HTTP status
    reason: str  # of an Event
    body: Any = None  # what was sent


class _User(msgspec.Struct):
    username: str = ""


class _Target(msgspec.Struct):
    resource: str = ""
    subresource: str = ""
    name: str = ""


class _Status(msgspec.Struct):
    code: int = 200


class _Entry(msgspec.Struct, rename="camel"):
    stage: str
    verb: str
    user: _User
    impersonated_user: _User | None = None
    object_ref: _Target | None = None
    response_status: _Status = field(default_factory=_Status)
    request_object: Any = None
    response_object: Any = None

    @property
    def who(self) -> str:
        return (self.impersonated_user or self.user).username

    @property
    def resource(self) -> str:
        target = self.object_ref or _Target()
        return f"{target.resource}/{target.subresource}".rstrip("/")


_ENTRY = msgspec.json.Decoder(_Entry)


def list_writes(log: Iterable[bytes], resources: Collection[str] = ABOUT_NODES) -> list[WriteRequest]:
    """What was asked for about these resources, as it was answered; of Events those about Nodes and requests.

    What was sent, and the name of what an Event is about, stand only in a log with `audit_fields`.
    """
    return [
        WriteRequest(
            entry.who,
            entry.verb,
            entry.resource,
            _get_object_name(entry),
            entry.response_status.code,
            str((entry.request_object or {}).get("reason", "")) if entry.resource == "events" else "",
            entry.request_object,
        )
        for entry in _read_write_entries(log, resources)
        if _get_object_name(entry)
    ]


def list_changes(log: Iterable[bytes]) -> list[FieldChange]:
    """What each write changed: the states of a Node in their order, each compared with the one before.

    The log must reach back to where the Nodes were created: of a state without one before it, all is new.
    """
    states: dict[str, list[tuple[int, str, dict[str, Any]]]] = {}
    for entry in _read_write_entries(log, ABOUT_NODES):
        node = entry.response_object
        if entry.response_status.code < 300 and _is_node(node):
            version = int(node["metadata"]["resourceVersion"])
            states.setdefault(node["metadata"]["uid"], []).append((version, entry.who, node))
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
    """The leaves of an object and where they are; a list is one leaf unless its elements have keys."""
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


def _read_write_entries(log: Iterable[bytes], resources: Collection[str]) -> Iterator[_Entry]:
    for line in log:
        if not line.endswith(b"\n"):
            break  # being written at this moment
        entry = _ENTRY.decode(line)
        wanted = entry.verb in _WRITES and entry.resource in resources
        if wanted and entry.stage == "ResponseComplete":
            yield entry


def _get_object_name(entry: _Entry) -> str:
    """The object's name; a Node that is created has it only in its body."""
    body = entry.request_object if isinstance(entry.request_object, dict) else {}
    if entry.resource == "events":
        about = body.get("involvedObject", {})
        return str(about.get("name", "")) if about.get("kind") in _EVENTS_ABOUT else ""
    return (entry.object_ref or _Target()).name or str(body.get("metadata", {}).get("name", ""))


def _is_node(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("kind") == "Node"
