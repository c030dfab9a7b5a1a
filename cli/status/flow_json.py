"""How the flow stands, for programs: everything, and numbers in full. Pure."""

from typing import Any

import msgspec

from cli.inside.seen import Word
from cli.status.as_json import standing_json
from cli.status.flow_parts import CertificateStanding, QueueStanding
from cli.status.flow_requests import RequestsStanding
from cli.status.flow_seen import Untold
from cli.status.flow_standing import FlowStanding, dead_letter


def flow_json(found: FlowStanding) -> dict[str, Any]:
    """What is not known is null."""
    leader = found.leader
    return {
        "at": msgspec.to_builtins(found.at),
        "wrong": list(found.wrong),
        "unknown": [*([found.nats_problem] if found.nats_problem else []), *found.untold],
        "allInOne": found.all_in_one,
        "services": [
            {
                "name": one.name,
                "state": one.state,
                "ready": one.ready,
                "pods": one.pods,
                "restarts": one.restarts if one.pods is not None else None,
                "text": one.text,
            }
            for one in found.services
        ],
        "leader": {
            "holder": leader.holder or None,
            "state": leader.state,
            "leaseSeconds": leader.lease_seconds,
            "wordSeconds": leader.word_seconds,
            "text": leader.text,
        },
        "stream": found.stream
        and {
            "created": found.stream.incarnation,
            "messages": found.stream.messages,
            "bytes": found.stream.bytes,
            "maxBytes": found.stream.max_bytes or None,
        },
        "queues": [_queue(one) for one in found.queues],
        "deadLetters": {"count": found.dead_count, "newest": [_letter(word) for word in found.dead]},
        "nodes": {
            "count": found.nodes.count,
            "usable": found.nodes.usable,
            "notReady": found.nodes.not_ready,
            "uninitialized": [
                {"name": one.name, "seconds": one.seconds, "blocked": one.blocked, "why": one.why}
                for one in found.nodes.uninitialized
            ],
        },
        "requests": None if isinstance(found.requests, Untold) else _requests(found.requests),
        "podCIDRs": None if isinstance(found.pod_cidrs, Untold) else _without_nodes(found),
        "certificates": [_certificate(one) for one in found.certificates],
    }


def _queue(one: QueueStanding) -> dict[str, Any]:
    queue = one.queue
    return {
        "name": queue.name,
        "service": queue.service,
        "state": one.state,
        "pending": queue.pending,
        "unacknowledged": queue.unacknowledged,
        "redelivered": queue.redelivered,
        "idleSeconds": one.idle_seconds,
        "text": one.text,
    }


def _letter(word: Word) -> dict[str, Any]:
    about, reason = dead_letter(word)
    return {"about": about, "reason": reason, "at": msgspec.to_builtins(word.published_at)}


def _requests(found: RequestsStanding) -> dict[str, Any]:
    return {
        "count": found.count,
        "pending": found.pending,
        "superseded": found.superseded,
        "denied": found.denied,
        "approvedNotIssued": found.not_issued,
        "issued": found.issued,
        "open": [
            {
                "name": one.name,
                "node": one.node,
                "state": one.state,
                "seconds": one.seconds,
                "wrong": one.wrong,
                "why": one.why,
            }
            for one in found.open
        ],
    }


def _without_nodes(found: FlowStanding) -> dict[str, Any] | None:
    """As `status ipam` has it, in short."""
    if isinstance(found.pod_cidrs, Untold):
        return None
    told = standing_json(found.pod_cidrs)
    return {key: told[key] for key in ("claims", "nodes", "pools", "conflicts")}


def _certificate(one: CertificateStanding) -> dict[str, Any]:
    return {
        "name": one.certificate.name,
        "expiresAt": msgspec.to_builtins(one.certificate.expires_at),
        "state": one.state,
    }
