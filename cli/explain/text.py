"""An explanation in words, the same on a terminal and in a pipe. Pure: the time comes in."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from rich.text import Text

from cli.explain.advice import advice
from cli.explain.explanation import Explanation, State, Verdict
from cli.explain.layout import blank, field, moment, of_check, written
from cli.lines import Line
from services.csr.request_checks import format_list

_MOST_NAMES: Final = 20
_LONGEST: Final = 1200  # characters of a condition's or a decision's text
_AS_BEFORE: Final = {("approved", "approve"), ("denied", "deny"), ("failed", "approve")}
_NOW: Final[dict[Verdict, tuple[str, str]]] = {
    "approve": ("approve", "green"),
    "deny": ("deny", "red"),
    "wait": ("wait", "yellow"),
    "unknown": ("not known here", "cyan"),
    "ignore": ("leave it alone", "dim"),
    "foreign": ("leave it alone", "dim"),
}
_TODAY: Final[dict[Verdict, str]] = {
    "approve": "it would be approved now",
    "deny": "it would be denied now",
    "wait": "it would wait now",
    "unknown": "what it would be now is not known here",
    "ignore": "csr has no part in it",
    "foreign": "csr leaves it alone: the Node is another's",
}
_STATES: Final[dict[State, str]] = {
    "pending": "yellow", "superseded": "dim", "approved": "green", "denied": "red", "failed": "red"
}  # fmt: skip


def of_explanation(explanation: Explanation, now: datetime) -> Iterator[Line]:
    """Who asks for what, each check, the decision, what to do."""
    yield from _heading(explanation, now)
    if explanation.checks:
        yield blank()
        yield Line(0, Text("Checks, by what is so now", style="bold"))
        yield from (of_check(check) for check in explanation.checks)
        yield from _machines(explanation)
    yield blank()
    yield from _decision(explanation)
    for number, each in enumerate(advice(explanation)):
        yield field("" if number else "Do", Text(each))


def _heading(explanation: Explanation, now: datetime) -> Iterator[Line]:
    filed, asked = explanation.filed, explanation.asked
    node = filed.request.node_name
    who = f"  asked for by node {node}" if node and explanation.verdict != "ignore" else "  not ours"
    yield Line(0, Text.assemble((filed.name, "bold"), who))
    yield field("Filed", Text(moment(filed.metadata.creation_timestamp, now)))
    yield field("By", Text(f"{written(filed.spec.username)} for signer {written(filed.spec.signer_name)}"))
    if asked is not None:
        yield field("DNS names", Text(_all(asked.dns_names)))
        yield field("IP addresses", Text(_all(asked.ips)))
        if asked.other_sans:
            yield field("Other names", Text(format_list(asked.other_sans)))
        usages = ", ".join(map(written, filed.spec.usages[:8])) or "no usages"
        yield field("Key", Text(f"{asked.key}, for {usages}"))
    if filed.spec.expiration_seconds is not None:
        yield field("Expires after", Text(f"{filed.spec.expiration_seconds} s, as asked for"))
    yield from _state(explanation, now)


def _state(explanation: Explanation, now: datetime) -> Iterator[Line]:
    condition, style = explanation.condition, _STATES[explanation.state]
    parts: list[tuple[str, str]] = [(explanation.state, style)]
    if condition is not None and condition.last_update_time:
        parts.append((f" {moment(condition.last_update_time, now)}", ""))
    if explanation.state == "approved":
        parts.append(
            (", certificate issued", "") if explanation.filed.issued else (", not issued yet", "yellow")
        )
    if explanation.superseded_by:
        parts.append((f" by {explanation.superseded_by}, a newer one of the same node", ""))
    yield field("State", Text.assemble(*parts))
    if condition is not None:
        said = ": ".join(filter(None, (condition.reason, condition.message)))
        yield field("", Text(written(said, _LONGEST), style="dim"))


def _machines(explanation: Explanation) -> Iterator[Line]:
    if explanation.machines:
        left = explanation.not_asked
        others = f"; {left} other{' was' if left == 1 else 's were'} not (--all-machines)" if left else ""
        yield Line(2, Text(f"Machines asked: {format_list(explanation.machines)}{others}", style="dim"))


def _decision(explanation: Explanation) -> Iterator[Line]:
    state, verdict = explanation.state, explanation.verdict
    word, style = _NOW[verdict]
    if state == "pending":
        yield field("Decision", Text(word, style=style))
        writes = "csr writes: " if verdict in ("approve", "deny") else ""
        yield field("", Text(writes + written(explanation.reason, _LONGEST)))
    elif state == "superseded":
        yield field("Decision", Text("none: of a node's pending requests the newest is decided"))
    else:
        yield field("Decision", Text.assemble((state, _STATES[state]), f"; {_TODAY[verdict]}"))
        if (state, verdict) not in _AS_BEFORE:
            yield field("", Text(written(explanation.reason, _LONGEST)))


def _all(values: tuple[str, ...]) -> str:
    more = f" and {len(values) - _MOST_NAMES} more" if len(values) > _MOST_NAMES else ""
    return ", ".join(map(written, values[:_MOST_NAMES])) + more or "none"
