"""The explanation of a Node as JSON. Pure."""

from typing import Any

from cli.explain.node.node_explanation import NodeExplanation
from libs.common.contract.node import BLOCKED_CONDITION
from services.labeler.core.plan import Plan
from services.lifecycle.core.shutdown_taint import SHUTDOWN_TAINT


def node_explanation_to_json(explanation: NodeExplanation) -> dict[str, Any]:
    """Return the same content as the text output. Kubernetes names are as in Kubernetes."""
    evidence, node, deletion = explanation.evidence, explanation.node, explanation.deletion
    messages, taint = evidence.last_messages, deletion.taint
    return {
        "name": node.name,
        "uid": node.uid,
        "creationTimestamp": node.metadata.creation_timestamp,
        "verdict": explanation.verdict,
        "journey": explanation.steps,
        "state": explanation.state,
        "providerID": node.spec.provider_id or None,
        "addresses": node.status.addresses,
        "podCIDRs": node.spec.pod_cidrs,
        "taints": node.spec.taints,
        "ready": node.find_condition("Ready"),
        "blocked": node.find_condition(BLOCKED_CONDITION),
        "owners": [
            {"controller": each.controller, "owned": not each.why_not, "why": each.why_not or None}
            for each in explanation.owners
        ],
        "machineAsked": evidence.machine_result is not None and not evidence.is_from_bus,
        "checks": [
            {"name": check.name, "result": check.result, "text": check.text} for check in explanation.checks
        ],
        "labeler": _plan_to_json(explanation.plan) if explanation.plan else None,
        "keptKeys": explanation.kept_keys,
        "lifecycle": {
            "outcome": deletion.outcome,
            "reason": deletion.reason,
            "evidence": deletion.evidence,
            "taint": {"taint": SHUTDOWN_TAINT.key, "set": taint.is_set, "reason": taint.reason}
            if taint
            else None,
        },
        "lastWords": {  # the messages are as stored in the stream
            "problem": messages.problem or None,
            "observed": messages.observed,
            "ofMachine": messages.machine_event,
            "decided": messages.decisions,
            "dead": messages.dead_letters,
            "unreadable": messages.unreadable,
        },
        "notRead": evidence.unavailable_parts,
    }


def _plan_to_json(plan: Plan) -> dict[str, Any]:
    return {
        "outcome": plan.outcome,
        "reason": plan.reason,
        "blocked": plan.blocker.reason if plan.blocker else None,
        "writes": plan.summary,
        "events": [{"reason": notice.reason, "message": notice.message} for notice in plan.notices],
    }
