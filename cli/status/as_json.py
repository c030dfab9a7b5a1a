"""How pod CIDRs stand, for programs: everything, and numbers in full. Pure."""

from typing import Any

import msgspec

from cli.status.conflicts import Conflict
from cli.status.held import Held
from cli.status.standing import PoolStanding, Resting, Standing


def standing_json(standing: Standing) -> dict[str, Any]:
    """Names that Kubernetes has are written as there; what is not known is null."""
    return {
        "at": msgspec.to_builtins(standing.at),
        "claimPages": list(standing.pages),
        "claims": standing.claims,
        "nodes": {"count": standing.nodes, "withoutPodCIDRs": standing.waiting},
        "pools": [_pool(pool) for pool in standing.pools],
        "podCIDRs": [_held(held) for held in standing.held],
        "quarantined": [_resting(one) for one in standing.resting],
        "conflicts": [_conflict(conflict) for conflict in standing.conflicts],
    }


def _pool(pool: PoolStanding) -> dict[str, Any]:
    return {
        "name": pool.name or None,
        "network": pool.cidr,
        "mask": pool.mask,
        "capacity": pool.capacity,
        "inUse": pool.in_use,
        "free": pool.free,
        "quarantined": pool.quarantined,
    }


def _held(held: Held) -> dict[str, Any]:
    claim = held.claim
    return {
        "node": held.node,
        "uid": held.uid,
        "podCIDR": held.pod_cidr or None,
        "state": held.state,
        "claim": claim and {"block": claim.block, "node": claim.node, "uid": claim.uid},
        "why": held.why or None,
    }


def _resting(one: Resting) -> dict[str, Any]:
    return {
        "block": one.claim.block,
        "node": one.claim.node,
        "uid": one.claim.uid,
        "since": msgspec.to_builtins(one.since),
        "until": msgspec.to_builtins(one.until),
    }


def _conflict(conflict: Conflict) -> dict[str, Any]:
    return {
        "kind": conflict.kind,
        "nodes": list(conflict.nodes),
        "blocks": list(conflict.blocks),
        "text": conflict.text,
    }
