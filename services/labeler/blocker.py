"""Why a Node cannot be initialised for now: one word for machines, one sentence for operators."""

from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common.bus.delivery import RETRY_CAP_SECONDS, PermanentError
from libs.common.contract.machine import FaultKind, ForeignNodeIP, MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, PROVIDED_NODE_IP_ANNOTATION, Node, NodeCondition

_MESSAGE_LIMIT: Final = 1024  # characters; the text comes from machines and servers

# The condition is written again only when this word changes, so it must not name what changes at each try.
FAULT_REASONS: Final[dict[FaultKind, str]] = {
    "not_found": "TalosResourceMissing",
    "refused": "TalosUnreachable",
    "timeout": "TalosTimeout",
    "certificate": "TalosCertificateRejected",
    "permission": "TalosPermissionDenied",
    "wrong_machine": "WrongMachineAnswers",
    "invalid": "TalosAnswerInvalid",
    "no_endpoint": "NoTalosEndpoint",
    "bad_node_ip": "ProvidedNodeIPInvalid",
    "internal": "TalosInternalError",
}

WRITE_FAILED: Final = "NodeWriteFailed"
_RETRIED: Final = f"retried for ever, with back-off up to {RETRY_CAP_SECONDS:.0f} s"
_RETRIED_ON_CHANGE: Final = "tried again when the Node or its machine changes, and with each resync"
_WAITS_FOR_ANNOTATION: Final = (
    "looked at again when it changes: correct --node-ip of the kubelet"  # nobody is asked
)


class Blocker(msgspec.Struct, frozen=True):
    """`reason` is a CamelCase word for conditions and Events; `message` names step, endpoint and retries."""

    reason: str
    message: str


def block_on_fault(fault: MachineFault) -> Blocker:
    """The machine gave no facts."""
    where = f" at {fault.endpoint}" if fault.endpoint else ""
    again = _WAITS_FOR_ANNOTATION if fault.kind == "bad_node_ip" else _RETRIED
    return _make_blocker(FAULT_REASONS[fault.kind], f"{fault.step}{where}: {fault.message}; {again}")


def block_on_bad_node_ip(why: str) -> Blocker:
    """The kubelet's annotation is none that any honest node has."""
    text = f"annotation {PROVIDED_NODE_IP_ANNOTATION}: {why}; it is written by the node's kubelet"
    return _make_blocker(FAULT_REASONS["bad_node_ip"], f"{text}; {_WAITS_FOR_ANNOTATION}")


def block_on_foreign_node_ip(foreign: Sequence[ForeignNodeIP], node_name: str) -> Blocker:
    """Another machine answers at an address that the kubelet announces."""
    there = " and ".join(f"machine {each.node_name} answers at {each.address}" for each in foreign)
    return _make_blocker(
        "NodeIPOfAnotherMachine",
        f"annotation {PROVIDED_NODE_IP_ANNOTATION}: {there}, and this Node is on machine {node_name}; a "
        "providerID is "
        f"written once and for ever, so none is written. Correct --node-ip of the kubelet; {_RETRIED}",
    )


def block_on_missing_node_ip(node_ip: str, node_name: str) -> Blocker:
    """The fallback providerID needs an address that the machine does not have."""
    return _make_blocker(
        "NodeIPNotOnMachine",
        f"annotation {PROVIDED_NODE_IP_ANNOTATION}: the providerID would contain {node_ip}, but machine "
        f"{node_name} "
        "neither lists this address on a link nor answers there; a providerID is immutable, so no other "
        f"address is used. Correct the link of the machine, or --node-ip of the kubelet; {_RETRIED}",
    )


def block_on_incomplete_metadata(why: str) -> Blocker:
    """The machine answers, but its cloud has not told it everything yet."""
    return _make_blocker(
        "WaitingForPlatformMetadata",
        f"PlatformMetadata: {why}; a providerID is written once and for ever, so nothing is guessed. "
        "Looked at again as soon as Talos reports more, and every 30 s at the latest",
    )


def block_on_failed_provider_id_rule(why: str) -> Blocker:
    """A rule should have given the providerID, and could not."""
    return _make_blocker(
        "ProviderIDRuleFailed",
        f"platformMetadata.ProviderID: {why}; a providerID is written once and for ever, so none is written "
        "without the rule. Correct it, or what it reads of the machine",
    )


def block_on_missing_native_provider_id(schemes: Sequence[str]) -> Blocker:
    """The file says that providerIDs are native here, and nobody gives one."""
    return _make_blocker(
        "NativeProviderIDMissing",
        f"a native format is configured: ownership.providerIDSchemes names {', '.join(schemes)}, and neither "
        "the machine nor a rule gives a providerID; it is written once and for ever, so talos:// does not "
        "stand in for it. Give one by a rule (platformMetadata.ProviderID), or name talos among the schemes",
    )


def block_on_machine_config_taint() -> Blocker:
    """Talos itself would put the taint back."""
    return _make_blocker(
        "TaintSetByMachineConfig",
        "machine.nodeTaints sets node.cloudprovider.kubernetes.io/uninitialized: Talos would put it back "
        "whenever it is removed. Remove it from the machine config",
    )


def block_on_missing_facts(seconds: float) -> Blocker:
    """Nobody has said anything about the Node's machine: the metadata service is down, or far behind."""
    return _make_blocker(
        "NoFactsYet",
        f"the metadata service has said nothing about this Node's machine for {seconds:.0f} s "
        "(is it running, does it reach NATS and the Talos API?); initialised as soon as it does",
    )


def describe_failed_write(error: Exception) -> str:
    """What Kubernetes said to a write, and when it is tried again."""
    for_good = isinstance(error, PermanentError)
    told = ": ".join((*getattr(error, "__notes__", ()), str(error)))
    return f"{told}; {_RETRIED_ON_CHANGE if for_good else _RETRIED}"


def block_on_failed_write(description: str) -> Blocker:
    """All is known, but Kubernetes does not take it; `said` as `failed_write` tells it."""
    return _make_blocker(WRITE_FAILED, f"writing the Node: {description}")


def block_on_defect(error: Exception) -> Blocker:
    """What is known of the Node cannot be judged: ours to mend, and no reason to be silent."""
    return _make_blocker(
        "DefectInTalosCCM",
        f"planning the Node: {type(error).__name__}: {error}; please report it with the labeler's log. "
        f"{_RETRIED_ON_CHANGE.capitalize()}",
    )


def build_condition(blocker: Blocker) -> NodeCondition:
    """The Node condition that says it; negative polarity, removed when the Node is initialised."""
    return NodeCondition(
        type=BLOCKED_CONDITION, status="True", reason=blocker.reason, message=blocker.message
    )


def is_reported_on(node: Node, blocker: Blocker) -> bool:
    """Whether the Node bears that reason."""
    present = node.find_condition(BLOCKED_CONDITION)
    return present is not None and (present.status, present.reason) == ("True", blocker.reason)


def should_remove_condition(node: Node) -> bool:
    """Whether the condition goes in the write that gives the Node its addresses.

    Where the next write may be refused again, the condition stays until the Node is initialized: else each
    retry would remove it and the next look would set it.
    """
    present = node.find_condition(BLOCKED_CONDITION)
    return present is not None and (node.is_initialized or present.reason != WRITE_FAILED)


def _make_blocker(reason: str, message: str) -> Blocker:
    # Machines have a say in it, and it is read in terminals: one line, nothing that steers them.
    message = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in message)
    return Blocker(reason, message if len(message) <= _MESSAGE_LIMIT else message[: _MESSAGE_LIMIT - 1] + "…")
