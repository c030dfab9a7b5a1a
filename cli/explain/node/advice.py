"""What to do about a Node, by what stands in its way. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from cli.explain.node.explanation import Explanation
from libs.common.machine import FaultKind, MachineFault
from services.labeler.plan import Plan

_OF_FAULT: Final[Mapping[FaultKind, str]] = {
    "not_found": "The machine is still starting: look again. If it stays so, talosctl dmesg and talosctl get "
    "machinestatus say what it waits for.",
    "refused": "Nobody listens at the Talos API (port 50000) of the machine, or the control plane that is "
    "asked cannot reach it: is it on, and is the port open between them?",
    "timeout": "The machine does not answer: is it on, and is port 50000 open to it from control planes?",
    "certificate": "Get a talosconfig of this cluster with the role os:reader (talosctl config new), and "
    "compare the clocks.",
    "permission": "The talosconfig needs the role os:reader.",
    "wrong_machine": "Another machine has the address that the Node names. If this Node's machine is gone "
    "for good, delete the Node; lifecycle does it, where that is on.",
    "no_endpoint": "Name control planes with --talos-endpoints, or in the talosconfig.",
    "bad_node_ip": "Correct --node-ip of the kubelet (machine.kubelet.nodeIP in the machine config).",
}
_OF_BLOCK: Final[Mapping[str, str]] = {
    "WaitingForPlatformMetadata": "Talos gets them from its cloud: talosctl get platformmetadata -o "
    "yaml, and talosctl dmesg if they stay empty.",
    "ProviderIDRuleFailed": "Correct the rule; talos-ccm render FILE --from-cluster {node} shows what it "
    "gives.",
    "TaintSetByMachineConfig": "Take the taint out of machine.nodeTaints in the machine config.",
}
_KUBELET: Final = "The kubelet says why: talosctl service kubelet, talosctl logs kubelet, on {node}."
_SHOULD_HAPPEN: Final = (
    "It happens within seconds where the services run. If it does not: /readyz?verbose of watcher, metadata "
    "and labeler; and --nats-url here tells what they said last."
)
_MISMATCH: Final = (
    "Whoever looks for the machine by its providerID does not find it. It cannot be changed: delete the Node "
    "and restart its kubelet, at a time when it may be drained."
)
_NO_TALOS: Final = "Give access to Talos with --talosconfig (role os:reader; metadata uses one like it)."


def advice(explanation: Explanation) -> Iterator[str]:
    """A sentence or two for each thing that can be done; nothing where all is well."""
    for text in _advice(explanation):
        yield text.replace("{node}", explanation.node.name)


def _advice(explanation: Explanation) -> Iterator[str]:
    evidence, plan = explanation.evidence, explanation.plan
    failed = {check.name for check in explanation.checks if check.result == "failed"}
    unknown = {check.name for check in explanation.checks if check.result == "unknown"}
    if "providerID" in failed:
        yield _MISMATCH
    if isinstance(evidence.look, MachineFault) and evidence.look.kind in _OF_FAULT:
        yield _OF_FAULT[evidence.look.kind]
    elif plan is not None:
        yield from _of_plan(plan)
    if "machine" in unknown:
        yield _NO_TALOS
    if "ready" in failed and not isinstance(evidence.look, MachineFault):
        yield _KUBELET


def _of_plan(plan: Plan) -> Iterator[str]:
    if plan.blocked is not None and plan.blocked.reason in _OF_BLOCK:
        yield _OF_BLOCK[plan.blocked.reason]
    elif plan.outcome in ("initialized", "updated"):
        yield _SHOULD_HAPPEN
