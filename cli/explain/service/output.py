"""The explanation of a Service as text, the same on a terminal and in a pipe, or as JSON. Pure."""

from collections.abc import Iterator
from typing import Any, Final

from rich.text import Text

from cli.cluster.unavailable import Unavailable, list_known
from cli.explain.layout import format_findings, format_time, format_title, quote
from cli.explain.service.service_explanation import ServiceExplanation, ServiceState, group_left_out
from cli.lines import Line, blank_line, format_field, format_names, pluralize
from libs.common.contract.kube_service import CLASS_FINALIZER, CLEANUP_FINALIZER
from services.cloud.core.balancers.balancer_record import BalancerRecord

_MOST_EVENTS: Final = 6
_STATES: Final[dict[ServiceState, tuple[str, str]]] = {
    "well": ("healthy", "green"),
    "moving": ("in progress", "yellow"),
    "another's": ("not handled by this controller", "dim"),
    "unknown": ("unknown: the flags of the accounts' processes cannot be read", "cyan"),
    "stuck": ("", "red"),
}


def format_explanation(explanation: ServiceExplanation) -> Iterator[Line]:
    """Yield the lines: problems, account, balancer, targets, Events."""
    service = explanation.evidence.service
    text, style = _STATES[explanation.state]
    what = explanation.findings[0].what if explanation.findings else text
    name = f"{service.metadata.namespace}/{service.name}"
    yield Line(0, Text.assemble((name, "bold"), " is ", (what, style)))
    yield from format_findings(explanation.findings)
    if explanation.abandon_command:
        yield format_field(
            "Give up",
            "Only if no token ever returns: the Service ends, and its load balancer stays. It costs money "
            "until you delete it at the cloud.",
        )
        yield Line(2, Text(explanation.abandon_command), is_unbroken=True)
    yield blank_line()
    yield from _format_fields(explanation)
    yield from _format_targets(explanation)
    yield from _format_events(explanation)


def _format_fields(explanation: ServiceExplanation) -> Iterator[Line]:
    service, record, process = explanation.evidence.service, explanation.record, explanation.process
    yield format_field("Type", quote(service.spec.type))
    yield format_field("Class", quote(service.spec.load_balancer_class or "none"))
    if process is not None:
        yield format_field("Account", f"{process.account.name} ({process.provider}), {process.place}")
    elif isinstance(explanation.evidence.accounts, Unavailable):
        yield format_field("Account", explanation.evidence.accounts.explanation, "cyan")
    else:
        yield format_field("Account", quote(record.account) if record else "none of this controller")
    if record is not None:
        yield format_field("Load balancer", _describe_record(record))
    addresses = [each.ip or each.hostname for each in service.status.load_balancer.ingress]
    yield format_field("Addresses", ", ".join(map(quote, addresses)) or "none")
    finalizers = [
        each for each in service.metadata.finalizers if each in (CLEANUP_FINALIZER, CLASS_FINALIZER)
    ]
    yield format_field("Finalizer", ", ".join(finalizers) or "none")
    if service.metadata.deletion_timestamp:
        yield format_field(
            "Deleted", format_time(service.metadata.deletion_timestamp, explanation.evidence.at)
        )
    for field in explanation.invalid:
        yield format_field("Invalid", quote(str(field)), "red")


def _describe_record(record: BalancerRecord) -> str:
    if record.create_deadline is None:
        return quote(record.id)
    return f"none recorded; a create ends by {record.create_deadline:%Y-%m-%d %H:%M:%S} UTC"


def _format_targets(explanation: ServiceExplanation) -> Iterator[Line]:
    selection = explanation.selection
    if selection is None:
        return
    nodes = len(list_known(explanation.evidence.nodes))
    count = len(selection.targets | selection.undecided)
    yield format_field("Targets", f"{count} of {pluralize(nodes, 'Node')}")
    for reason, names in group_left_out(selection).items():
        yield format_field("", f"left out: {format_names(names)}: {reason}")


def _format_events(explanation: ServiceExplanation) -> Iterator[Line]:
    events, at = explanation.evidence.events, explanation.evidence.at
    yield blank_line()
    yield format_title("Last Events")
    if isinstance(events, Unavailable):
        yield Line(2, Text(events.explanation, style="cyan"))
    for each in list_known(events)[:_MOST_EVENTS]:
        text = quote(each.message)
        yield Line(2, Text(text), Text(f"{format_time(each.at, at)}  {quote(each.reason)}  "))


def explanation_to_json(explanation: ServiceExplanation) -> dict[str, Any]:
    """Return the same content as the text output. Kubernetes names are as in Kubernetes."""
    evidence, process, selection = explanation.evidence, explanation.process, explanation.selection
    service = evidence.service
    return {
        "namespace": service.metadata.namespace,
        "name": service.name,
        "state": explanation.state,
        "problems": explanation.findings,
        "abandonCommand": explanation.abandon_command or None,
        "loadBalancerClass": service.spec.load_balancer_class,
        "account": process.account.name if process else None,
        "provider": process.provider if process else None,
        "record": explanation.record,
        "ingress": service.status.load_balancer.ingress,
        "finalizers": service.metadata.finalizers,
        "deletionTimestamp": service.metadata.deletion_timestamp,
        "invalidAnnotations": {each.field: each.reason for each in explanation.invalid},
        "targets": len(selection.targets | selection.undecided) if selection else None,
        "leftOutNodes": group_left_out(selection) if selection else None,
        "events": [
            {"reason": each.reason, "message": each.message, "at": each.at}
            for each in list_known(evidence.events)
        ],
        "conditions": service.status.conditions,
    }
