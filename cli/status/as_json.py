"""The cluster status as JSON, complete and with exact numbers. Pure."""

from typing import Any

import msgspec

from cli.cluster.kept_keys import kept_keys_to_json
from cli.cluster.unavailable import Unavailable
from cli.inside.flow_snapshot import LastMessage
from cli.status.cluster_status import ClusterStatus, summarize_dead_letter
from cli.status.components import CertificateStatus, ConsumerStatus
from cli.status.ipam.as_json import ipam_status_to_json
from cli.status.requests import RequestsStatus


def status_to_json(found: ClusterStatus) -> dict[str, Any]:
    """Return the JSON document. An unknown value is null."""
    leader = found.leader
    return {
        "at": msgspec.to_builtins(found.at),
        "wrong": list(found.problems),
        "unknown": [*([found.nats_problem] if found.nats_problem else []), *found.unavailable_parts],
        "allInOne": found.is_all_in_one,
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
            "heartbeatSeconds": leader.heartbeat_seconds,
            "text": leader.text,
        },
        "stream": found.stream
        and {
            "created": found.stream.stream_id,
            "messages": found.stream.messages,
            "bytes": found.stream.bytes,
            "maxBytes": found.stream.max_bytes or None,
        },
        "queues": [_consumer_to_json(one) for one in found.queues],
        "deadLetters": {
            "count": found.dead_count,
            "newest": [_dead_letter_to_json(word) for word in found.dead_letters],
        },
        "nodes": {
            "count": found.nodes.count,
            "usable": found.nodes.usable_count,
            "excluded": found.nodes.excluded,
            "notReady": found.nodes.not_ready,
            "uninitialized": [
                {"name": one.name, "seconds": one.seconds, "blocked": one.is_blocked, "why": one.why}
                for one in found.nodes.uninitialized
            ],
        },
        "keptKeys": kept_keys_to_json(found.kept_keys),
        "requests": None if isinstance(found.requests, Unavailable) else _requests_to_json(found.requests),
        "podCIDRs": None if isinstance(found.pod_cidrs, Unavailable) else _ipam_summary_to_json(found),
        "certificates": [_certificate_to_json(one) for one in found.certificates],
    }


def _consumer_to_json(one: ConsumerStatus) -> dict[str, Any]:
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


def _dead_letter_to_json(word: LastMessage) -> dict[str, Any]:
    about, reason = summarize_dead_letter(word)
    return {"about": about, "reason": reason, "at": msgspec.to_builtins(word.published_at)}


def _requests_to_json(found: RequestsStatus) -> dict[str, Any]:
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
                "wrong": one.is_wrong,
                "why": one.why,
            }
            for one in found.open
        ],
    }


def _ipam_summary_to_json(found: ClusterStatus) -> dict[str, Any] | None:
    """Return a short form of the JSON of `status ipam`."""
    if isinstance(found.pod_cidrs, Unavailable):
        return None
    told = ipam_status_to_json(found.pod_cidrs)
    return {key: told[key] for key in ("claims", "nodes", "pools", "conflicts")}


def _certificate_to_json(one: CertificateStatus) -> dict[str, Any]:
    return {
        "name": one.certificate.name,
        "expiresAt": msgspec.to_builtins(one.certificate.expires_at),
        "state": one.state,
    }
