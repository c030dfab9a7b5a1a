"""The writes and states of Nodes that an audit log contains. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import field

from chaos.history import OUR_USERS, NodeState, Write, read_node

_WRITES: Final = ("create", "update", "patch", "delete")


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
    received: datetime = field(name="requestReceivedTimestamp")
    answered: datetime = field(name="stageTimestamp")
    impersonated_user: _User | None = None
    sources: list[str] = field(name="sourceIPs", default_factory=list)
    target: _Target = field(name="objectRef", default_factory=_Target)
    response_status: _Status = field(default_factory=_Status)
    response_object: Any = None

    @property
    def resource(self) -> str:
        return f"{self.target.resource}/{self.target.subresource}".rstrip("/")

    @property
    def user_name(self) -> str:
        return (self.impersonated_user or self.user).username


_ENTRY: Final = msgspec.json.Decoder(_Entry)


class AuditHistory(msgspec.Struct, kw_only=True):
    """What a part of an audit log contains."""

    states: list[NodeState]
    writes: list[Write]
    request_counts: Counter[str]  # of our processes, without Leases


def read_audit_log(log: Iterable[bytes]) -> AuditHistory:
    """Read the entries of a log at level RequestResponse. An incomplete last line is ignored."""
    history = AuditHistory(states=[], writes=[], request_counts=Counter())
    for entry in _read_entries(log):
        if entry.user_name.startswith(OUR_USERS) and entry.target.resource != "leases":
            history.request_counts[f"{entry.verb} {entry.resource}"] += 1
        if entry.verb in _WRITES:
            history.writes.append(_make_write(entry))
            answer = entry.response_object
            if isinstance(answer, dict) and answer.get("kind") == "Node" and history.writes[-1].succeeded:
                history.states.append(read_node(answer))
    history.writes.sort(key=lambda write: write.answered)
    return history


def _read_entries(log: Iterable[bytes]) -> Iterator[_Entry]:
    for line in log:
        if not line.endswith(b"\n"):
            return
        entry = _ENTRY.decode(line)
        if entry.stage == ("ResponseStarted" if entry.verb == "watch" else "ResponseComplete"):
            yield entry


def _make_write(entry: _Entry) -> Write:
    answer = entry.response_object
    created = answer.get("metadata", {}).get("name", "") if isinstance(answer, dict) else ""
    return Write(
        received=entry.received.timestamp(),
        answered=entry.answered.timestamp(),
        user=entry.user_name,
        source=entry.sources[0] if entry.sources else "",
        verb=entry.verb,
        resource=entry.resource,
        name=entry.target.name or created,
        succeeded=entry.response_status.code < HTTPStatus.BAD_REQUEST,
        answer=answer,
    )
