"""Writes about Nodes and changes of their fields, from an audit log with the states of Nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from libs.testbed.control_plane.audit_log import WRITE_VERBS, AuditEntry, read_answered_requests

# The key fields of list elements: two controllers may each have their own taints.
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "spec.taints": ("key", "effect"),
    "status.conditions": ("type",),
}
ABOUT_NODES: Final = ("nodes", "nodes/status", "events", "certificatesigningrequests/approval")
_EVENTS_ABOUT: Final = ("Node", "CertificateSigningRequest")
_BOOKKEEPING: Final = ("metadata.resourceVersion", "metadata.managedFields", "metadata.generation")


class FieldChange(NamedTuple):
    """A write changed one field of a Node."""

    user: str
    node: str
    field: str  # such as "metadata.labels[team]" or "spec.taints[a/b:NoSchedule].value"


class WriteRequest(NamedTuple):
    """A write request, successful or not."""

    user: str
    verb: str
    resource: str  # with its subresource, such as "nodes/status"
    about: str  # name of the object; for an Event, the name of its involved object
    code: int  # HTTP status
    reason: str  # the reason of an Event
    body: Any = None  # the request body


def list_writes(log: Iterable[bytes], resources: Collection[str] = ABOUT_NODES) -> list[WriteRequest]:
    """List the writes to these resources in the order of their responses.

    Of Events it lists those about Nodes and certificate requests. Request bodies and the involved objects of
    Events are only in a log with `audit_fields`.
    """
    return [
        WriteRequest(
            entry.user_name,
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
    """List the fields that each write changed, by comparing each state of a Node with the previous one.

    The log must contain the creation of the Nodes: without a previous state every field counts as changed.
    """
    states: dict[str, list[tuple[int, str, dict[str, Any]]]] = {}
    for entry in _read_write_entries(log, ABOUT_NODES):
        node = entry.response_object
        if entry.response_status.code < 300 and _is_node(node):
            version = int(node["metadata"]["resourceVersion"])
            states.setdefault(node["metadata"]["uid"], []).append((version, entry.user_name, node))
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


def _read_write_entries(log: Iterable[bytes], resources: Collection[str]) -> Iterator[AuditEntry]:
    for entry in read_answered_requests(log):
        if entry.verb in WRITE_VERBS and entry.resource in resources:
            yield entry


def _get_object_name(entry: AuditEntry) -> str:
    """Return the object's name; in the creation of a Node only the body has it."""
    body = entry.request_object if isinstance(entry.request_object, dict) else {}
    if entry.resource == "events":
        about = body.get("involvedObject", {})
        return str(about.get("name", "")) if about.get("kind") in _EVENTS_ABOUT else ""
    return entry.target.name or str(body.get("metadata", {}).get("name", ""))


def _is_node(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("kind") == "Node"
