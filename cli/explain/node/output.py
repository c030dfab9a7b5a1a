"""The explanation of a Node as text, the same on a terminal and in a pipe, or as JSON. Pure."""

from collections.abc import Iterator
from typing import Any, Final

from rich.text import Text

from cli.cluster.kept_keys import count_kept_keys, format_kept_key
from cli.explain.layout import format_check, format_findings, format_time, format_title, quote
from cli.explain.node.cloud_state import describe_route
from cli.explain.node.deletion_forecast import DeletionForecast, DeletionOutcome, EvidenceState
from cli.explain.node.initialization_steps import InitializationStep, StepState
from cli.explain.node.node_evidence import NodeEvidence
from cli.explain.node.node_explanation import ControllerOwnership, NodeExplanation
from cli.lines import Line, blank_line, format_field, pluralize
from libs.common.bus.stream_limits import MAX_MESSAGE_AGE_TEXT
from libs.common.cloud_config.model import OwnershipConfig
from libs.common.contract.events import (
    DeadLetter,
    Decided,
    InstanceExists,
    InstanceGone,
    InstanceReport,
    InstanceShutDown,
    InstanceUnknown,
    NodeEnriched,
    NodeUnreachable,
)
from libs.common.contract.instances import InstanceAnchor, read_instance_record
from libs.common.contract.node import BLOCKED_CONDITION
from services.labeler.core.plan.plan import Plan, PlanOutcome
from services.lifecycle.core.node_change import SHUTDOWN_TAINT, ChangeKind

_MOST_LINES: Final = 40
_COLUMN: Final = 12
_TIME: Final = 21
_STEP_LABELS: Final[dict[StepState, tuple[str, str]]] = {
    "done": ("time unknown", "dim"),
    "owed": ("pending", "yellow"),
    "unknown": ("unknown", "cyan"),
    "none": ("-", "dim"),
}
_EVIDENCE_LABELS: Final[dict[EvidenceState, tuple[str, str]]] = {
    "has": ("proof", "red"),
    "lacks": ("no proof", "green"),
    "later": ("later", "yellow"),
    "unknown": ("unknown", "cyan"),
}
_DELETION_LABELS: Final[dict[DeletionOutcome, tuple[str, str]]] = {
    "not-owned": ("ignore it", "yellow"),
    "kept": ("keep it", "green"),
    "deletable": ("delete it, once the remaining conditions are met", "red"),
    "unknown": ("keep it, as far as known here", "cyan"),
}
_PLAN_LABELS: Final[dict[PlanOutcome, tuple[str, str]]] = {
    "initialized": ("initialize it", "green"),
    "updated": ("write", "yellow"),
    "unchanged": ("change nothing", "green"),
    "blocked": ("keep the taint", "red"),
    "not-ours": ("ignore it", "yellow"),
}


def format_explanation(explanation: NodeExplanation) -> Iterator[Line]:
    """Yield the lines: verdict, steps, Node, ownership, checks, plan, forecast, last messages."""
    yield from format_verdict(explanation)
    yield blank_line()
    yield format_title("Initialization steps (UTC)")
    yield from map(_format_step, explanation.steps)
    yield blank_line()
    yield from _format_heading(explanation)
    yield blank_line()
    yield from _format_owners(explanation)
    yield blank_line()
    yield format_title("Checks (current state)")
    yield from (format_check(check) for check in explanation.checks)
    if explanation.plan is not None:
        yield from _format_plan(explanation.plan, silent=explanation.evidence.fault is not None)
    yield blank_line()
    yield from _format_deletion(explanation.deletion)
    yield blank_line()
    yield from _format_last_messages(explanation.evidence)
    for each in explanation.evidence.unavailable_parts:
        yield format_field("Unavailable", quote(each), "cyan")


def format_verdict(explanation: NodeExplanation) -> Iterator[Line]:
    """Yield the first lines: each problem with start, cause and fix."""
    yield Line(0, Text.assemble((explanation.node.name, "bold"), " is ", *_describe_state(explanation)))
    yield from format_findings(explanation.verdict.findings)
    for report in explanation.kept_keys:
        fact, fix = format_kept_key(report)
        yield format_field("Kept key", fact.text)
        yield format_field("", fix.text)


def _describe_state(explanation: NodeExplanation) -> tuple[str | tuple[str, str], ...]:
    node, verdict, now = explanation.node, explanation.verdict, explanation.evidence.at
    match verdict.state:
        case "well" if explanation.kept_keys:
            return "initialized and ready, ", (f"but {count_kept_keys(explanation.kept_keys)}", "yellow")
        case "well":
            return ("healthy", "green"), ": initialized and ready"
        case "moving":
            is_written = node.is_initialized and bool(node.spec.provider_id)
            doing = ("starting" if is_written else "being initialized", "yellow")
            return doing, f" since {format_time(node.metadata.creation_timestamp, now)}"
        case "another's":
            return ("managed by another controller", "yellow"), ", and initialized"
        case "unknown" | "stuck":
            first = verdict.findings[0]
            since = f" since {format_time(first.since, now)}" if first.since else ""
            return (first.what, "red"), since


def _format_step(step: InitializationStep) -> Line:
    word, style = _STEP_LABELS[step.state]
    if step.at is not None:
        word, style = f"{step.at:%Y-%m-%d %H:%M:%S}", "green"
    label = Text.assemble((f"{word:<{_TIME}}", style), f"{step.who:<{_COLUMN}}")
    return Line(2, Text(quote(step.what + (f": {step.note}" if step.note else ""))), label)


def _format_heading(explanation: NodeExplanation) -> Iterator[Line]:
    node, now = explanation.node, explanation.evidence.at
    yield format_field("State", explanation.state)
    yield format_field("Registered", format_time(node.metadata.creation_timestamp, now))
    if node.metadata.deletion_timestamp is not None:
        yield format_field("Deleted", format_time(node.metadata.deletion_timestamp, now))
    lists = {
        "providerID": [node.spec.provider_id],
        "Addresses": [f"{each.type} {each.address}" for each in node.status.addresses],
        "Pod CIDRs": node.spec.pod_cidrs,
        "Taints": [f"{taint.key}:{taint.effect}" for taint in node.spec.taints],
    }
    if route := describe_route(explanation.evidence):
        lists["Route"] = [route]
    if (record := read_instance_record(node)) is not None:
        lists["Instance"] = [
            f"seen alive by account {record.account} at {record.seen_at:%Y-%m-%d %H:%M:%S} UTC"
        ]
    yield from (format_field(name, quote(", ".join(texts)) or "none") for name, texts in lists.items())
    blocked = node.find_condition(BLOCKED_CONDITION)
    if blocked is not None:
        since = f" since {blocked.last_transition_time}" if blocked.last_transition_time else ""
        yield format_field("Condition", f"{BLOCKED_CONDITION}{since}")
        yield format_field("", quote(f"{blocked.reason}: {blocked.message}"), "dim")


def _format_owners(explanation: NodeExplanation) -> Iterator[Line]:
    file = explanation.evidence.config_file
    source = file.source if file else "no --cloud-config given"
    yield format_title(f"Ownership ({source})")
    if explanation.evidence.ownership != OwnershipConfig():
        yield from map(_format_owner, explanation.owners)
        return
    text = "no ownership configured: each controller decides by itself"
    yield Line(2, Text(text, style="dim"))
    yield from (_format_owner(owner) for owner in explanation.owners if owner.why_not)


def _format_owner(owner: ControllerOwnership) -> Line:
    word, style = ("foreign", "yellow") if owner.why_not else ("managed", "green")
    label = Text.assemble((f"{word:<9}", style))
    text = f"{owner.controller} ({owner.manages})" + (f": {owner.why_not}" if owner.why_not else "")
    return Line(2, Text(text), label)


def _format_plan(plan: Plan, *, silent: bool) -> Iterator[Line]:
    yield blank_line()
    word, style = _PLAN_LABELS[plan.outcome]
    # A check already gives the reason.
    is_given = plan.outcome in ("initialized", "blocked") or (silent and plan.outcome == "unchanged")
    why = "" if is_given else f": {quote(plan.reason)}"
    yield format_field("The labeler", Text.assemble("would ", (word, style), why))
    for each in plan.summary[:_MOST_LINES]:
        yield format_field("", quote(each))
    if len(plan.summary) > _MOST_LINES:
        yield format_field("", f"and {len(plan.summary) - _MOST_LINES} more")
    for notice in plan.notices:
        yield format_field("", f"Event {notice.reason}: {quote(notice.message)}", "dim")


def _format_deletion(gone: DeletionForecast) -> Iterator[Line]:
    yield format_title("Evidence that the machine is gone (one query, now)")
    for piece in gone.evidence:
        word, style = _EVIDENCE_LABELS[piece.state]
        yield Line(2, Text(quote(piece.text)), Text(f"{word:<10}", style=style))
    word, style = _DELETION_LABELS[gone.outcome]
    why = "" if gone.evidence else f": {quote(gone.reason)}"
    yield Line(2, Text.assemble("Lifecycle would ", (word, style), why))
    if gone.taint is not None:
        verb = "set" if gone.taint.kind is ChangeKind.SET_TAINT else "remove"
        what = f"{SHUTDOWN_TAINT.key}:{SHUTDOWN_TAINT.effect}"
        yield Line(2, Text(f"It would {verb} the taint {what}: {quote(gone.taint.reason)}"))


def _format_last_messages(evidence: NodeEvidence) -> Iterator[Line]:
    yield format_title("Last messages of the services")
    if evidence.messages_problem:
        yield Line(2, Text(f"unknown: {quote(evidence.messages_problem)}", style="cyan"))
        return
    said = tuple(_list_messages(evidence))
    shown = [evidence.fault.message] if evidence.fault else []
    for name, text in said:
        for message in shown:  # services repeat the error of a machine
            text = text.replace(f": {message}", ": the error of the check `machine`")  # noqa: PLW2901
        yield Line(2, Text(quote(text)), Text(f"{name:<{_COLUMN}}", style="bold"))
    unreadable = [each.subject for each in evidence.messages.messages if each.unreadable]
    for subject in unreadable:
        yield Line(2, Text(f"the message on {subject} is unreadable", style="red"))
    if not said and not unreadable:
        text = f"none within {MAX_MESSAGE_AGE_TEXT}, which is the retention of NATS"
        yield Line(2, Text(text, style="dim"))


def _list_messages(evidence: NodeEvidence) -> Iterator[tuple[str, str]]:
    """Yield who has published each message, and what it says."""
    messages, now = evidence.messages, evidence.at
    match evidence.machine_event:
        case NodeUnreachable() as event:
            failed, known = pluralize(event.attempt, "attempt"), event.last_known
            text = f"no answer, {failed} failed, the last {format_time(event.enriched_at, now)}"
            since = f"; last answer {format_time(known.queried_at, now)}" if known is not None else ""
            yield "metadata", f"{text}: {event.fault.message}{since}"
        case NodeEnriched() as event:
            yield "metadata", f"answered {format_time(event.facts.queried_at, now)}"
    for decided in messages.list_events(Decided):
        text = f"{decided.outcome}, {format_time(decided.decided_at, now)}: {decided.reason}"
        yield decided.service, text
    for report in messages.list_events(InstanceReport):
        text = f"{describe_report(report)}, asked {format_time(report.asked_at, now)}"
        yield f"cloud {report.account}", text
    for dead in messages.list_events(DeadLetter):
        yield dead.service, f"rejected a message, {format_time(dead.at, now)}: {dead.reason}"


def describe_report(report: InstanceReport) -> str:
    """Return what an account says about the Node's instance."""
    match report:
        case InstanceExists():
            return "the instance exists"
        case InstanceShutDown():
            return "the instance is off"
        case InstanceGone(witness=witness):
            return f"no such instance any more; proof of the credential: {witness.id or witness.kind}"
        case InstanceUnknown(absent_from=InstanceAnchor()):
            return "no such instance, and none with its name"
        case InstanceUnknown(reason=reason):
            return f"unknown: {reason}"
    raise TypeError(f"{type(report).__name__} is no report")


def explanation_to_json(explanation: NodeExplanation) -> dict[str, Any]:
    """Return the same content as the text output. Kubernetes names are as in Kubernetes."""
    evidence, node, deletion = explanation.evidence, explanation.node, explanation.deletion
    messages, taint = evidence.messages, deletion.taint
    return {
        "name": node.name,
        "uid": node.uid,
        "creationTimestamp": node.metadata.creation_timestamp,
        "verdict": explanation.verdict,
        "steps": explanation.steps,
        "state": explanation.state,
        "providerID": node.spec.provider_id or None,
        "addresses": node.status.addresses,
        "podCIDRs": node.spec.pod_cidrs,
        "route": describe_route(evidence) or None,
        "taints": node.spec.taints,
        "ready": node.find_condition("Ready"),
        "blocked": node.find_condition(BLOCKED_CONDITION),
        "owners": [
            {"controller": each.controller, "owned": not each.why_not, "why": each.why_not or None}
            for each in explanation.owners
        ],
        "machineQueried": evidence.report is not None and not evidence.is_from_bus,
        "checks": [
            {"name": check.name, "result": check.result, "text": check.text} for check in explanation.checks
        ],
        "labeler": _plan_to_json(explanation.plan) if explanation.plan else None,
        "keptKeys": explanation.kept_keys,
        "lifecycle": {
            "outcome": deletion.outcome,
            "reason": deletion.reason,
            "evidence": deletion.evidence,
            "taint": {
                "taint": SHUTDOWN_TAINT.key,
                "set": taint.kind is ChangeKind.SET_TAINT,
                "reason": taint.reason,
            }
            if taint
            else None,
        },
        "lastMessages": {  # the messages are as stored in the stream
            "problem": evidence.messages_problem or None,
            "observed": evidence.observed,
            "machine": evidence.machine_event,
            "decisions": messages.list_events(Decided),
            "deadLetters": messages.list_events(DeadLetter),
            "instances": messages.list_events(InstanceReport),
            "unreadable": [each.subject for each in messages.messages if each.unreadable],
        },
        "unavailable": evidence.unavailable_parts,
    }


def _plan_to_json(plan: Plan) -> dict[str, Any]:
    return {
        "outcome": plan.outcome,
        "reason": plan.reason,
        "blocked": plan.blocker.reason if plan.blocker else None,
        "writes": plan.summary,
        "events": [{"reason": notice.reason, "message": notice.message} for notice in plan.notices],
    }
