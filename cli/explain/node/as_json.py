"""The explanation of a Node as JSON. Pure."""

from typing import Any

import msgspec

from cli.cluster.kept_keys import kept_keys_to_json
from cli.explain.node.deletion_forecast import DeletionForecast
from cli.explain.node.last_messages import LastMessages
from cli.explain.node.node_explanation import NodeExplanation
from libs.common.contract.node import BLOCKED_CONDITION
from services.labeler.plan import Plan
from services.lifecycle.shutdown_taint import SHUTDOWN_TAINT, ShutdownTaintChange


def node_explanation_to_json(explanation: NodeExplanation) -> dict[str, Any]:
    """Return the same content as the text output. Kubernetes names are as in Kubernetes."""
    node, words = explanation.node, explanation.evidence.last_messages
    verdict = explanation.verdict
    return {
        "name": node.name,
        "uid": node.uid,
        "creationTimestamp": msgspec.to_builtins(node.metadata.creation_timestamp),
        "verdict": {"state": verdict.state, "findings": msgspec.to_builtins(verdict.findings)},
        "journey": msgspec.to_builtins(explanation.steps),
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
        "machineAsked": explanation.evidence.machine_result is not None
        and not explanation.evidence.is_from_bus,
        "checks": [
            {"name": check.name, "result": check.result, "text": check.text} for check in explanation.checks
        ],
        "labeler": _plan_to_json(explanation.plan) if explanation.plan else None,
        "keptKeys": kept_keys_to_json(explanation.kept_keys),
        "lifecycle": _deletion_to_json(explanation.deletion),
        "lastWords": _last_messages_to_json(words) if words else None,
        "notRead": list(explanation.evidence.context.unavailable_parts),
    }


def _plan_to_json(plan: Plan) -> dict[str, Any]:
    return {
        "outcome": plan.outcome,
        "reason": plan.reason,
        "blocked": plan.blocker.reason if plan.blocker else None,
        "writes": list(plan.summary),
        "events": [{"reason": notice.reason, "message": notice.message} for notice in plan.notices],
    }


def _deletion_to_json(gone: DeletionForecast) -> dict[str, Any]:
    return {
        "outcome": gone.outcome,
        "reason": gone.reason,
        "evidence": msgspec.to_builtins(gone.evidence),
        "taint": _taint_to_json(gone.taint) if gone.taint else None,
    }


def _taint_to_json(change: ShutdownTaintChange) -> dict[str, Any]:
    return {"taint": SHUTDOWN_TAINT.key, "set": change.is_set, "reason": change.reason}


def _last_messages_to_json(words: LastMessages) -> dict[str, Any]:
    """Return `observed`, `ofMachine`, `decided` and `dead` as stored in the stream."""
    return {
        "problem": words.problem or None,
        "observed": msgspec.to_builtins(words.observed),
        "ofMachine": msgspec.to_builtins(words.machine_event),
        "decided": msgspec.to_builtins(words.decisions),
        "dead": msgspec.to_builtins(words.dead_letters),
        "unreadable": list(words.unreadable),
    }
