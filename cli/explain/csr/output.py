"""The explanation of a request as text, the same on a terminal and in a pipe, or as JSON. Pure."""

from collections.abc import Iterator
from typing import Any, Final

from rich.text import Text

from cli.explain.csr.advice import suggest_actions
from cli.explain.csr.request_explanation import RequestExplanation, RequestState, RequestVerdict
from cli.explain.layout import format_check, format_time, format_title, quote
from cli.layout import blank_line, format_field
from cli.lines import Line
from libs.common.contract.subjects import NAME_LIMIT
from services.csr.core.request_checks import format_list

_MOST_NAMES: Final = 20
_AS_BEFORE: Final = {("approved", "approve"), ("denied", "deny"), ("failed", "approve")}
_STYLES: Final[dict[RequestVerdict, str]] = {
    "approve": "green",
    "deny": "red",
    "wait": "yellow",
    "unknown": "cyan",
    "ignore": "dim",
    "foreign": "dim",
}
_TODAY: Final[dict[RequestVerdict, str]] = {
    "approve": "it would be approved now",
    "deny": "it would be denied now",
    "wait": "it would wait now",
    "unknown": "the decision now is unknown",
    "ignore": "csr does not handle it",
    "foreign": "csr ignores it: another controller manages the Node",
}
_STATES: Final[dict[RequestState, str]] = {
    "pending": "yellow", "superseded": "dim", "approved": "green", "denied": "red", "failed": "red"
}  # fmt: skip


def format_explanation(explanation: RequestExplanation) -> Iterator[Line]:
    """Yield the lines: request, checks, decision, advice."""
    yield from _format_heading(explanation)
    if explanation.checks:
        yield blank_line()
        yield format_title("Checks (current state)")
        yield from (format_check(check) for check in explanation.checks)
        yield from _format_machines(explanation)
    yield blank_line()
    yield from _format_decision(explanation)
    for number, each in enumerate(suggest_actions(explanation)):
        yield format_field("" if number else "Action", each)
    for each in explanation.evidence.unavailable_parts:
        yield format_field("Unavailable", quote(each), "cyan")


def _format_heading(explanation: RequestExplanation) -> Iterator[Line]:
    filed, asked = explanation.evidence.csr, explanation.evidence.certificate_request
    node = filed.node_name
    who = (
        f"  requested by node {node}" if node and explanation.verdict != "ignore" else "  not handled by csr"
    )
    yield Line(0, Text.assemble((filed.name, "bold"), who))
    yield format_field("Created", format_time(filed.metadata.creation_timestamp, explanation.evidence.at))
    yield format_field(
        "Requester", f"{quote(filed.spec.username)} for signer {quote(filed.spec.signer_name)}"
    )
    if asked is not None:
        yield format_field("DNS names", _format_values(asked.dns_names))
        yield format_field("IP addresses", _format_values(asked.ips))
        if asked.other_sans:
            yield format_field("Other names", format_list(asked.other_sans))
        usages = ", ".join(map(quote, filed.spec.usages[:8])) or "no usages"
        yield format_field("Key", f"{asked.key}, for {usages}")
    if filed.spec.expiration_seconds is not None:
        yield format_field("Expires after", f"{filed.spec.expiration_seconds} s, as requested")
    yield from _format_state(explanation)


def _format_state(explanation: RequestExplanation) -> Iterator[Line]:
    condition, style = explanation.condition, _STATES[explanation.state]
    parts: list[tuple[str, str]] = [(explanation.state, style)]
    if condition is not None and condition.last_update_time:
        parts.append((f" {format_time(condition.last_update_time, explanation.evidence.at)}", ""))
    if explanation.state == "approved":
        parts.append(
            (", certificate issued", "")
            if explanation.evidence.csr.is_issued
            else (", not issued yet", "yellow")
        )
    if explanation.superseded_by:
        parts.append((f" by {explanation.superseded_by}, a newer request of the same node", ""))
    yield format_field("State", Text.assemble(*parts))
    if condition is not None:
        reason = ": ".join(filter(None, (condition.reason, condition.message)))
        yield format_field("", quote(reason), "dim")


def _format_machines(explanation: RequestExplanation) -> Iterator[Line]:
    evidence = explanation.evidence
    if evidence.machine_results:
        left = evidence.unqueried_machines
        others = (
            f"; {left} other{' was' if left == 1 else 's were'} not queried (--all-machines)" if left else ""
        )
        yield Line(
            2, Text(f"Machines queried: {format_list(evidence.queried_machines)}{others}", style="dim")
        )


def _format_decision(explanation: RequestExplanation) -> Iterator[Line]:
    state, verdict = explanation.state, explanation.verdict
    word, style = "ignore" if verdict == "foreign" else verdict, _STYLES[verdict]
    if state == "pending":
        yield format_field("Decision", word, style)
        writes = "csr writes: " if verdict in ("approve", "deny") else ""
        yield format_field("", writes + quote(explanation.reason))
    elif state == "superseded":
        yield format_field("Decision", "none: csr decides only the newest pending request of a node")
    else:
        yield format_field("Decision", Text.assemble((state, _STATES[state]), f"; {_TODAY[verdict]}"))
        if (state, verdict) not in _AS_BEFORE:
            yield format_field("", quote(explanation.reason))


def _format_values(values: tuple[str, ...]) -> str:
    more = f" and {len(values) - _MOST_NAMES} more" if len(values) > _MOST_NAMES else ""
    return ", ".join(quote(each, NAME_LIMIT) for each in values[:_MOST_NAMES]) + more or "none"


def explanation_to_json(explanation: RequestExplanation) -> dict[str, Any]:
    """Return the same content as the text output. Kubernetes names are as in Kubernetes."""
    evidence = explanation.evidence
    filed, asked = evidence.csr, evidence.certificate_request
    return {
        "name": filed.name,
        "node": filed.node_name or None,
        "username": filed.spec.username,
        "signerName": filed.spec.signer_name,
        "creationTimestamp": filed.metadata.creation_timestamp,
        "dnsNames": asked.dns_names if asked else None,
        "ipAddresses": asked.ips if asked else None,
        "otherNames": asked.other_sans if asked else None,
        "key": asked.key if asked else None,
        "usages": filed.spec.usages,
        "expirationSeconds": filed.spec.expiration_seconds,
        "conditions": filed.status.conditions,
        "issued": filed.is_issued,
        "state": explanation.state,
        "supersededBy": explanation.superseded_by or None,
        "queriedMachines": evidence.queried_machines,
        "unqueriedMachines": evidence.unqueried_machines,
        "checks": explanation.checks,
        "decision": {
            "now": explanation.verdict,
            "check": explanation.check or None,
            "reason": explanation.reason,
        },
        "advice": list(suggest_actions(explanation)),
        "unavailable": evidence.unavailable_parts,
    }
