"""An explanation of a Node for programs. Pure."""

from typing import Any

import msgspec

from cli.explain.node.explanation import Explanation
from cli.explain.node.last_words import LastWords
from cli.explain.node.lifecycle import Gone
from libs.common.node import BLOCKED_CONDITION
from services.labeler.plan import Plan
from services.lifecycle.shutdown_taint import SHUTDOWN_TAINT, ShutdownTaintChange


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """The same as in words; names that Kubernetes has are written as there."""
    node, words = explanation.node, explanation.evidence.last_words
    verdict = explanation.verdict
    return {
        "name": node.name,
        "uid": node.uid,
        "creationTimestamp": msgspec.to_builtins(node.metadata.creation_timestamp),
        "verdict": {"state": verdict.state, "findings": msgspec.to_builtins(verdict.findings)},
        "journey": msgspec.to_builtins(explanation.journey),
        "state": explanation.state,
        "providerID": node.spec.provider_id or None,
        "addresses": msgspec.to_builtins(node.status.addresses),
        "podCIDRs": list(node.spec.pod_cidrs),
        "taints": msgspec.to_builtins(node.spec.taints),
        "ready": msgspec.to_builtins(node.find_condition("Ready")),
        "blocked": msgspec.to_builtins(node.find_condition(BLOCKED_CONDITION)),
        "owners": [
            {"controller": each.controller, "owned": not each.why_not, "why": each.why_not or None}
            for each in explanation.owners
        ],
        "machineAsked": explanation.evidence.look is not None and not explanation.evidence.heard,
        "checks": [
            {"name": check.name, "result": check.result, "text": check.text} for check in explanation.checks
        ],
        "labeler": _plan(explanation.plan) if explanation.plan else None,
        "lifecycle": _gone(explanation.gone),
        "lastWords": _last_words(words) if words else None,
        "notRead": list(explanation.evidence.around.untold),
    }


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "outcome": plan.outcome,
        "reason": plan.reason,
        "blocked": plan.blocker.reason if plan.blocker else None,
        "writes": list(plan.summary),
        "events": [{"reason": notice.reason, "message": notice.message} for notice in plan.notices],
    }


def _gone(gone: Gone) -> dict[str, Any]:
    return {
        "outcome": gone.outcome,
        "reason": gone.reason,
        "evidence": msgspec.to_builtins(gone.evidence),
        "taint": _taint(gone.taint) if gone.taint else None,
    }


def _taint(change: ShutdownTaintChange) -> dict[str, Any]:
    return {"taint": SHUTDOWN_TAINT.key, "set": change.is_set, "reason": change.reason}


def _last_words(words: LastWords) -> dict[str, Any]:
    """`observed`, `ofMachine`, `decided` and `dead` as they stand in the stream."""
    return {
        "problem": words.problem or None,
        "observed": msgspec.to_builtins(words.observed),
        "ofMachine": msgspec.to_builtins(words.of_machine),
        "decided": msgspec.to_builtins(words.decided),
        "dead": msgspec.to_builtins(words.dead),
        "unreadable": list(words.unreadable),
    }
