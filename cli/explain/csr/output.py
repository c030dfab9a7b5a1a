"""The explanation of a request, with advice, as text or as JSON. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.text import Text

from cli.explain.csr.request_explanation import RequestExplanation, RequestState, RequestVerdict
from cli.explain.layout import format_check, format_time, format_title, quote
from cli.lines import Line, blank_line, format_field
from libs.common.contract.subjects import NAME_LIMIT
from services.csr.core.request_checks import format_list

# By the deciding check. {node} is the requesting node, {others} are the other Nodes to wait for.
_ENDS_A_WAIT: Final[Mapping[str, str]] = {
    "node": "csr decides once Node {node} is registered. If it never is, read the log of its kubelet: "
    "talosctl logs kubelet.",
    "unreachable": "Make the Talos API (port 50000) of {node} reachable for metadata, through a control "
    "plane or at its own address; csr then decides within seconds. (This is the result of this command; "
    "metadata may reach more.)",
    "asking": "csr decides once metadata has queried the machine, which takes seconds.",
    "machine": "Another machine answers at the address that Node {node} announces: check the annotation "
    "alpha.kubernetes.io/provided-node-ip of the Node, and the hostname of the machine at that address.",
    "names": "csr approves once the machine has that name. If it should not have it, remove the name "
    "from the kubelet's configuration; the kubelet then files a new request. If the name may be a Service's, "
    "give the machine a hostname that begins with its node name, or approve the request by hand.",
    "addresses": "csr approves once the machine has that address, or answers there if it is a node IP on a "
    "virtual link. If it never will, the kubelet is configured with a wrong address: see "
    "machine.kubelet.nodeIP in the machine config, or --node-ip.",
    "pod-cidrs": "Remove the address from {node}: it may belong to a pod on {others}. A node IP passes once "
    "the machine answers there over Talos. If the pod network ignores podCIDRs, approve the request by hand.",
    "former": "If {others} is gone for good, delete its Node; otherwise bring it back. csr decides "
    "afterwards.",
    "rivals": "Find out whether the name or address belongs to {node} or {others}. Remove it from the "
    "other machine, or delete its Node if the machine is gone. csr decides afterwards. It approves an "
    "address for the Node that had it first. This command does not know the order.",
    "networks": "Set --service-cluster-ip-range of csr to the value of kube-apiserver, or make a control "
    "plane reachable for metadata through Talos. csr then knows which addresses belong to Services.",
    "endpoint": "The certificate of an API server contains it. A worker may only have its node name and "
    "node IPs: remove it from {node}. A control plane may have more once its Node has the label "
    "node-role.kubernetes.io/control-plane. No node may have a virtual IP. If csr cannot read "
    "that certificate, its log and /readyz?verbose give the reason.",
    "no-talos": "Without Talos, set the networks of your nodes: --csr-allowed-networks=10.0.0.0/8 of csr.",
}
_AFTER_A_DENIAL: Final[Mapping[str, str]] = {
    "names": "If the machine should have that name, set it as its hostname in the machine config. If "
    "not, find out which process on {node} requests it. No node may have the name of a Service or a pod.",
    "addresses": "No certificate of {node} may contain that address. Two machines have the address, the "
    "kubelet is configured with a wrong address, or an attacker controls {node}.",
    "endpoint": "The certificate of the API server contains the name. Give the machine of {node} another "
    "hostname. A Node gets only its own name.",
    "expiration": "The kubelet requests this lifetime, or --csr-min-expiration and --csr-max-expiration are "
    "too narrow.",
}
_IF_UNKNOWN: Final[Mapping[str, str]] = {
    "former": "The Events of the Node give the reason: kubectl describe node {node}",
    "networks": "Set --service-cluster-ip-range to the value of csr, or give access to Talos with "
    "--talosconfig.",
    "endpoint": "Use a kubeconfig that points directly to an API server, such as that of `talosctl "
    "kubeconfig`; not to Omni, Teleport or a load balancer that terminates TLS.",
}
_WITHOUT_TALOS: Final = (
    "Give access to Talos with --talosconfig (role os:reader, as metadata has), or decide as "
    "csr does without Talos: --without-talos --csr-allowed-networks=NETWORK"
)
_NO_KUBELET: Final = (
    "No kubelet files such a request: find out which process on {node} uses the kubelet's identity."
)
_FOREIGN: Final = (
    "The controller that manages Node {node} decides. If this controller should manage it, correct ownership "
    "in the --cloud-config file or the labels of the Node; csr then decides within seconds."
)
_CLEANED: Final = "Kubernetes removes this request one day after its creation."
_NOT_SIGNED: Final = (
    "The request is approved but not signed yet. kube-controller-manager signs: check that its controller "
    "csrsigning runs, with --cluster-signing-cert-file (or --cluster-signing-kubelet-serving-cert-file)."
)
_FILED_AGAIN: Final = (
    "A denial is final. The kubelet files new requests by itself, with growing delays. To "
    "trigger one now: talosctl service kubelet restart."
)
_STAYS_PENDING: Final = (
    "If it stays pending, csr is not running, or its log and /readyz?verbose give the reason. "
    "After 20 decided requests in a row, csr decides one request of a node per minute. After "
    "its start, csr waits until metadata has reported on every machine (startup). It decides "
    "only with recent messages of metadata (age): check metadata."
)


def suggest_actions(explanation: RequestExplanation) -> Iterator[str]:
    """Yield one text per possible action; none if nothing needs to be done."""
    match explanation:
        case RequestExplanation(verdict="ignore"):
            yield "csr does not handle this signer or user; another approver decides."
        case RequestExplanation(verdict="foreign", state="pending"):
            yield _FOREIGN.format(node=explanation.evidence.csr.node_name)
        case RequestExplanation(state="superseded"):
            yield f"See {explanation.superseded_by}: the kubelet waits for that request. {_CLEANED}"
        case RequestExplanation(state="approved"):
            yield from () if explanation.evidence.csr.status.is_issued else (_NOT_SIGNED,)
        case RequestExplanation(state="failed"):
            yield "The signer rejected the request, which is final. The kubelet files a new one."
        case RequestExplanation(state="denied"):
            yield from _advise_denied(explanation)
        case _:
            yield from _advise_pending(explanation)


def _advise_pending(explanation: RequestExplanation) -> Iterator[str]:
    match explanation.verdict:
        case "deny":
            yield from _advise_denied(explanation)
        case "unknown":
            yield _fill_text(_IF_UNKNOWN.get(explanation.check, _WITHOUT_TALOS), explanation)
        case "wait":
            yield _fill_text(_ENDS_A_WAIT.get(explanation.check, _STAYS_PENDING), explanation)
        case _:
            yield _STAYS_PENDING


def _advise_denied(explanation: RequestExplanation) -> Iterator[str]:
    if explanation.verdict == "deny":
        yield _fill_text(_AFTER_A_DENIAL.get(explanation.check, _NO_KUBELET), explanation)
    yield _FILED_AGAIN


def _fill_text(text: str, explanation: RequestExplanation) -> str:
    node = explanation.evidence.csr.node_name
    waits = [check for check in explanation.checks if check.name == explanation.check]
    others = sorted({name for check in waits for name in check.nodes} - {node})
    return text.format(node=node, others=" or ".join(others[:3]) or "another")


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
            if explanation.evidence.csr.status.is_issued
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
    if evidence.reports:
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
        "issued": filed.status.is_issued,
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
