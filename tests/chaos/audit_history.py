"""The writes, and the states of Nodes and certificate requests, that an audit log contains. Pure."""

from collections import Counter
from collections.abc import Iterable

import msgspec

from libs.testbed.control_plane.audit_entry import WRITE_VERBS, AuditEntry, read_answered_requests
from tests.chaos.history import OUR_USERS, NodeState, SigningRequest, Write, read_node, read_signing_request


class AuditHistory(msgspec.Struct, kw_only=True):
    """What a part of an audit log contains."""

    states: list[NodeState]
    requests: list[SigningRequest]
    writes: list[Write]
    request_counts: Counter[str]  # of our processes, without Leases


def read_audit_log(*parts: Iterable[bytes]) -> AuditHistory:
    """Read the entries of a log at level RequestResponse. An incomplete last line is ignored.

    Between two parts of the log, etcd was restored.
    """
    history = AuditHistory(states=[], requests=[], writes=[], request_counts=Counter())
    for restores, part in enumerate(parts):
        _read_part(part, restores, history)
    history.writes.sort(key=lambda write: write.answered)
    return history


def _read_part(log: Iterable[bytes], restores: int, history: AuditHistory) -> None:
    for entry in read_answered_requests(log):
        if entry.user_name.startswith(OUR_USERS) and entry.target.resource != "leases":
            history.request_counts[f"{entry.verb} {entry.resource}"] += 1
        if entry.verb in WRITE_VERBS:
            history.writes.append(_make_write(entry))
            answer = entry.response_object
            if not (isinstance(answer, dict) and entry.succeeded):
                continue
            if answer.get("kind") == "Node":
                history.states.append(read_node(answer, restores))
            elif answer.get("kind") == "CertificateSigningRequest":
                history.requests.append(read_signing_request(answer, restores))


def _make_write(entry: AuditEntry) -> Write:
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
        succeeded=entry.succeeded,
        answer=answer,
    )
