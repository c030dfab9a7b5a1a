"""The IPAM status as JSON, complete and with exact numbers. Pure."""

from typing import Any

import msgspec

from cli.status.ipam.claim_conflicts import ClaimConflict
from cli.status.ipam.ipam_status import IpamStatus, PoolStatus, QuarantinedBlock
from cli.status.ipam.pod_cidr_status import PodCidrStatus


def ipam_status_to_json(standing: IpamStatus) -> dict[str, Any]:
    """Return the JSON document. Kubernetes names are as in Kubernetes; an unknown value is null."""
    return {
        "at": msgspec.to_builtins(standing.at),
        "claimPages": list(standing.pages),
        "claims": standing.claims,
        "nodes": {"count": standing.nodes, "withoutPodCIDRs": standing.waiting},
        "pools": [_pool_to_json(pool) for pool in standing.pools],
        "podCIDRs": [_pod_cidr_to_json(held) for held in standing.pod_cidrs],
        "quarantined": [_quarantined_to_json(one) for one in standing.quarantined],
        "conflicts": [_conflict_to_json(conflict) for conflict in standing.conflicts],
    }


def _pool_to_json(pool: PoolStatus) -> dict[str, Any]:
    return {
        "name": pool.name or None,
        "network": pool.cidr,
        "mask": pool.mask,
        "capacity": pool.capacity,
        "inUse": pool.in_use,
        "free": pool.free,
        "quarantined": pool.quarantined,
    }


def _pod_cidr_to_json(held: PodCidrStatus) -> dict[str, Any]:
    claim = held.claim
    return {
        "node": held.node,
        "uid": held.uid,
        "podCIDR": held.pod_cidr or None,
        "state": held.state,
        "claim": claim and {"block": claim.block, "node": claim.node, "uid": claim.uid},
        "why": held.why or None,
    }


def _quarantined_to_json(one: QuarantinedBlock) -> dict[str, Any]:
    return {
        "block": one.claim.block,
        "node": one.claim.node,
        "uid": one.claim.uid,
        "since": msgspec.to_builtins(one.since),
        "until": msgspec.to_builtins(one.until),
    }


def _conflict_to_json(conflict: ClaimConflict) -> dict[str, Any]:
    return {
        "kind": conflict.kind,
        "nodes": list(conflict.nodes),
        "blocks": list(conflict.blocks),
        "text": conflict.text,
    }
