"""The keys of a Node that the labeler leaves unset, the client that has set each, and the fix. Pure."""

from collections.abc import Iterator, Sized
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from rich.text import Text

from cli.lines import Line
from libs.common.cloud_config.findings import truncate_line
from libs.common.contract.node import Node, ObjectMeta
from libs.common.contract.node_patch import NodeChanges
from libs.common.json_errors import JSON_ERRORS
from services.labeler.core.plan.kept_keys import (
    KeptKey,
    describe_hand_back,
    describe_taint_opt_in,
    find_kept_keys,
)

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
_NO_CHANGES: Final = NodeChanges()


class FieldManager(msgspec.Struct, frozen=True, kw_only=True):
    """One element of metadata.managedFields: a client, its last write, and the fields that it has set."""

    manager: str = ""
    time: datetime | None = None
    fields: dict[str, Any] = msgspec.field(name="fieldsV1", default={})


class ManagedMeta(ObjectMeta, frozen=True, kw_only=True, rename="camel"):
    """The metadata of a Node with its managedFields, which the services drop."""

    managed_fields: msgspec.Raw = msgspec.Raw(b"[]")  # decoded only for a kept key


class ManagedNode(Node, frozen=True, kw_only=True):
    """A Node with its managedFields."""

    metadata: ManagedMeta


class KeptKeyReport(KeptKey, frozen=True, kw_only=True):
    """A kept key or a withheld taint of one Node."""

    node: str
    manager: str  # the client that has set the key; "" if Kubernetes does not say
    since: datetime | None  # at the latest: it is the time of the client's last write
    fix: str  # the command that gives the key to the labeler


def report_kept_keys(node: Node, changes: NodeChanges = _NO_CHANGES) -> tuple[KeptKeyReport, ...]:
    """Return the kept keys; `changes` are those of the labeler's plan, if it is known."""
    return tuple(_make_report(node, kept) for kept in find_kept_keys(node, changes))


def count_kept_keys(reports: Sized) -> str:
    """Return the number of kept keys, as a statement."""
    number = len(reports)
    return f"{'1 key differs' if number == 1 else f'{number:,} keys differ'} from the rules and the machine"


def format_kept_key(report: KeptKeyReport) -> Iterator[Line]:
    """Yield two lines: what is on the Node and since when, and the command that changes it."""
    name, desired = f"{report.kind} {truncate_line(report.key)}", _shorten(report.desired)
    if report.current is None:
        yield Line(0, Text(f"{name} ({desired}) is not set: the Node was in use before it had a record"))
        yield Line(2, Text(f"to set it once: {report.fix}"))
        return
    instead = "another value" if report.desired.startswith("sha256:") else desired
    by = truncate_line(report.manager) or "an unknown client"
    when = f", {report.since:%Y-%m-%d %H:%M:%S} UTC or before" if report.since else ""
    yield Line(0, Text(f"{name} is {_shorten(report.current)} instead of {instead}: set by {by}{when}"))
    yield Line(2, Text(f"to get it back: {report.fix}"))


def _make_report(node: Node, kept: KeptKey) -> KeptKeyReport:
    newest, fix = FieldManager(), describe_taint_opt_in(node.name)
    if kept.current is not None:
        fix = describe_hand_back(node.name, kept.kind, kept.key)
        found = (each for each in _list_managers(node) if _has_set(each, kept))
        newest = max(found, key=lambda each: each.time or _LONG_AGO, default=newest)
    return KeptKeyReport(
        **msgspec.structs.asdict(kept), node=node.name, manager=newest.manager, since=newest.time, fix=fix
    )


def _list_managers(node: Node) -> tuple[FieldManager, ...]:
    if not isinstance(node.metadata, ManagedMeta):  # a Node of a file
        return ()
    try:
        return msgspec.json.decode(node.metadata.managed_fields, type=tuple[FieldManager, ...])
    except JSON_ERRORS:  # a client may send managedFields itself
        return ()


def _has_set(manager: FieldManager, kept: KeptKey) -> bool:
    # Taints are one field: Kubernetes records only who has written the list last.
    path = (
        ("f:spec", "f:taints") if kept.kind == "taint" else ("f:metadata", f"f:{kept.kind}s", f"f:{kept.key}")
    )
    fields: Any = manager.fields
    for name in path:
        if not isinstance(fields, dict) or name not in fields:
            return False
        fields = fields[name]
    return True


def _shorten(value: str) -> str:
    return truncate_line(value) or '""'
