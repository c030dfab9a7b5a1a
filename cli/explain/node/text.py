"""An explanation of a Node in words, the same on a terminal and in a pipe but for where lines break. Pure."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from rich.text import Text

from cli.explain.layout import blank, field, moment, of_check, written
from cli.explain.node.explanation import Explanation, Owner
from cli.explain.node.journey import Standing, Step
from cli.explain.node.last_words import LastWords
from cli.explain.node.lifecycle import Found, Gone
from cli.explain.node.lifecycle import Outcome as Fate
from cli.lines import Line
from libs.common.events import NodeUnreachable
from libs.common.machine import MachineFault
from libs.common.node import BLOCKED_CONDITION
from services.labeler.plan import Plan, PlanOutcome
from services.lifecycle.shutdown_taint import SHUTDOWN_TAINT

_LONGEST: Final = 1200  # characters of a text of somebody else's
_MOST_LINES: Final = 40
_COLUMN: Final = 12
_TIME: Final = 21
_OWED: Final[dict[Standing, tuple[str, str]]] = {
    "done": ("at a time not known", "dim"),
    "owed": ("not yet", "yellow"),
    "unknown": ("not known here", "cyan"),
    "none": ("-", "dim"),
}
_FOUND: Final[dict[Found, tuple[str, str]]] = {
    "has": ("proof", "red"),
    "lacks": ("no proof", "green"),
    "later": ("later", "yellow"),
    "unknown": ("unknown", "cyan"),
}
_FATES: Final[dict[Fate, tuple[str, str]]] = {
    "not-owned": ("leave it alone", "yellow"),
    "kept": ("keep it", "green"),
    "deletable": ("delete it, where it runs, once the rest is there, too", "red"),
    "unknown": ("keep it, as far as it is known here", "cyan"),
}
_PLANS: Final[dict[PlanOutcome, tuple[str, str]]] = {
    "initialized": ("initialise it", "green"),
    "updated": ("write", "yellow"),
    "unchanged": ("write nothing", "green"),
    "blocked": ("leave the taint where it is", "red"),
    "not-ours": ("leave it alone", "yellow"),
}


def of_explanation(explanation: Explanation, now: datetime) -> Iterator[Line]:
    """What is wrong and what mends it; then its journey, what it is, whose it is, each check, what is done
    next, what was said last.
    """
    yield from of_verdict(explanation, now)
    yield blank()
    yield _title("Journey, in UTC")
    yield from map(_of_step, explanation.journey)
    yield blank()
    yield from _heading(explanation, now)
    yield blank()
    yield from _owners(explanation)
    yield blank()
    yield _title("Checks, by what is so now")
    yield from (of_check(check) for check in explanation.checks)
    if explanation.plan is not None:
        yield from _of_plan(explanation.plan, silent=isinstance(explanation.evidence.look, MachineFault))
    yield blank()
    yield from _of_gone(explanation.gone)
    if explanation.evidence.last_words is not None:
        yield blank()
        yield from _of_last_words(explanation.evidence.last_words, now)
    for each in explanation.evidence.around.untold:
        yield field("Not read", Text(_shown(each), style="cyan"))


def of_verdict(explanation: Explanation, now: datetime) -> Iterator[Line]:
    """The first lines: what is wrong since when, why, and what mends it."""
    name, verdict = (explanation.node.name, "bold"), explanation.verdict
    created = explanation.node.metadata.creation_timestamp
    match verdict.state:
        case "well":
            yield Line(0, Text.assemble(name, " is ", ("well", "green"), ": initialized and ready"))
        case "moving":
            is_ours = explanation.node.is_initialized and bool(explanation.node.spec.provider_id)
            doing = ("starting" if is_ours else "being initialized", "yellow")
            yield Line(0, Text.assemble(name, " is ", doing, f" since {moment(created, now)}"))
        case "another's":
            yield Line(0, Text.assemble(name, " is ", ("another's", "yellow"), ", and initialized"))
        case "unknown" | "stuck":
            first = verdict.findings[0]
            since = f" since {moment(first.since, now)}" if first.since else ""
            yield Line(0, Text.assemble(name, " is ", (first.what, "red"), since))
    for number, finding in enumerate(verdict.findings):
        if number:
            yield field("Also", Text(finding.what, style="red"))
        yield field("Cause", Text(_shown(finding.cause)))
        yield field("Fix", Text(_shown(finding.fix), style="bold"))


def _of_step(step: Step) -> Line:
    word, style = _OWED[step.standing]
    if step.at is not None:
        word, style = f"{step.at:%Y-%m-%d %H:%M:%S}", "green"
    label = Text.assemble((f"{word:<{_TIME}}", style), f"{step.who:<{_COLUMN}}")
    return Line(2, Text(_shown(step.what + (f": {step.note}" if step.note else ""))), label)


def _heading(explanation: Explanation, now: datetime) -> Iterator[Line]:
    node = explanation.node
    yield field("State", Text(explanation.state))
    yield field("Registered", Text(moment(node.metadata.creation_timestamp, now)))
    if node.metadata.deletion_timestamp is not None:
        yield field("Deleted", Text(moment(node.metadata.deletion_timestamp, now)))
    yield field("providerID", Text(_shown(node.spec.provider_id)))
    addresses = ", ".join(f"{each.type} {each.address}" for each in node.status.addresses)
    yield field("Addresses", Text(_shown(addresses)))
    yield field("Pod CIDRs", Text(_shown(", ".join(node.spec.pod_cidrs))))
    taints = ", ".join(f"{taint.key}:{taint.effect}" for taint in node.spec.taints)
    yield field("Taints", Text(_shown(taints)))
    blocked = node.find_condition(BLOCKED_CONDITION)
    if blocked is not None:
        since = f" since {blocked.last_transition_time}" if blocked.last_transition_time else ""
        text = written(f"{blocked.reason}: {blocked.message}", _LONGEST)
        yield field("Condition", Text(f"{BLOCKED_CONDITION}{since}"))
        yield field("", Text(text, style="dim"))


def _owners(explanation: Explanation) -> Iterator[Line]:
    file = explanation.evidence.file
    source = file.source if file else "--cloud-config, which is not given"
    yield _title(f"Whose it is, by {source}")
    if explanation.says_ownership:
        yield from map(_of_owner, explanation.owners)
        return
    text = "nothing is said of ownership: each controller judges for itself"
    yield Line(2, Text(text, style="dim"))
    yield from (_of_owner(owner) for owner in explanation.owners if owner.why_not)


def _of_owner(owner: Owner) -> Line:
    word, style = ("foreign", "yellow") if owner.why_not else ("ours", "green")
    label = Text.assemble((f"{word:<9}", style))
    text = f"{owner.controller} ({owner.does})" + (f": {owner.why_not}" if owner.why_not else "")
    return Line(2, Text(text), label)


def _of_plan(plan: Plan, *, silent: bool) -> Iterator[Line]:
    yield blank()
    word, style = _PLANS[plan.outcome]
    # Why is told by a check.
    told = plan.outcome in ("initialized", "blocked") or (silent and plan.outcome == "unchanged")
    why = "" if told else f": {_shown(plan.reason)}"
    yield field("The labeler", Text.assemble("would ", (word, style), why))
    for each in plan.summary[:_MOST_LINES]:
        yield field("", Text(_shown(each)))
    if len(plan.summary) > _MOST_LINES:
        yield field("", Text(f"and {len(plan.summary) - _MOST_LINES} more"))
    for notice in plan.notices:
        yield field("", Text(f"Event {notice.reason}: {_shown(notice.message)}", style="dim"))


def _of_gone(gone: Gone) -> Iterator[Line]:
    yield _title("Is its machine gone? What lifecycle has and lacks, by one look now")
    for piece in gone.evidence:
        word, style = _FOUND[piece.found]
        yield Line(2, Text(_shown(piece.text)), Text(f"{word:<10}", style=style))
    word, style = _FATES[gone.outcome]
    why = "" if gone.evidence else f": {_shown(gone.reason)}"
    yield Line(2, Text.assemble("Lifecycle would ", (word, style), why))
    if gone.taint is not None:
        verb = "set" if gone.taint.is_set else "remove"
        told = (
            f"It would {verb} the taint {SHUTDOWN_TAINT.key}:{SHUTDOWN_TAINT.effect}: "
            f"{_shown(gone.taint.reason)}"
        )
        yield Line(2, Text(told))


def _of_last_words(words: LastWords, now: datetime) -> Iterator[Line]:
    yield _title("What the services said last")
    if words.problem:
        yield Line(2, Text(f"unknown: {_shown(words.problem)}", style="cyan"))
        return
    said = words.of_machine
    if isinstance(said, NodeUnreachable):
        text = f"no answer, attempt {said.attempt}, {moment(said.enriched_at, now)}: {said.fault.message}; "
        yield _of_service("metadata", f"{text}tries again {said.retry_at:%Y-%m-%d %H:%M:%S} UTC")
    elif said is not None:
        yield _of_service("metadata", f"answered {moment(said.facts.queried_at, now)}")
    for decided in words.decided:
        text = f"{decided.outcome}, {moment(decided.decided_at, now)}: {decided.reason}"
        yield _of_service(decided.service, text)
    for dead in words.dead:
        yield _of_service(dead.service, f"could not handle a message, {moment(dead.at, now)}: {dead.reason}")
    for subject in words.unreadable:
        yield Line(2, Text(f"what stands under {subject} cannot be read", style="red"))
    if not (said or words.decided or words.dead or words.unreadable):
        yield Line(2, Text("nothing within the hour that NATS keeps it", style="dim"))


def _of_service(name: str, text: str) -> Line:
    return Line(2, Text(_shown(text)), Text(f"{name:<{_COLUMN}}", style="bold"))


def _title(text: str) -> Line:
    return Line(0, Text(text, style="bold"))


def _shown(text: str) -> str:
    return written(text, _LONGEST) if text else "none"
