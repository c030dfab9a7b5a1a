"""Why a Node cannot be initialised for now: one word for machines, one sentence for operators."""

from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common.delivery import RETRY_CAP_SECONDS, PermanentError
from libs.common.machine import FaultKind, ForeignAnswer, MachineFault
from libs.common.node import CONDITION_BLOCKED, PROVIDED_NODE_IP, Node, NodeCondition

_MESSAGE_LIMIT: Final = 1024  # characters; the text comes from machines and servers

# The condition is written again only when this word changes, so it must not name what changes at each try.
REASON_OF_FAULT: Final[dict[FaultKind, str]] = {
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
_AGAIN: Final = f"retried for ever, with back-off up to {RETRY_CAP_SECONDS:.0f} s"
_WITH_THE_NEXT_WORD: Final = "tried again when the Node or its machine changes, and with each resync"
_WHEN_CHANGED: Final = "looked at again when it changes: correct --node-ip of the kubelet"  # nobody is asked


class Blocked(msgspec.Struct, frozen=True):
    """`reason` is a CamelCase word for conditions and Events; `message` names step, endpoint and retries."""

    reason: str
    message: str


def by_fault(fault: MachineFault) -> Blocked:
    """The machine gave no facts."""
    where = f" at {fault.endpoint}" if fault.endpoint else ""
    again = _WHEN_CHANGED if fault.kind == "bad_node_ip" else _AGAIN
    return _blocked(REASON_OF_FAULT[fault.kind], f"{fault.step}{where}: {fault.message}; {again}")


def by_bad_node_ip(why: str) -> Blocked:
    """The kubelet's annotation is none that any honest node has."""
    text = f"annotation {PROVIDED_NODE_IP}: {why}; it is written by the node's kubelet"
    return _blocked(REASON_OF_FAULT["bad_node_ip"], f"{text}; {_WHEN_CHANGED}")


def by_foreign_answer(foreign: Sequence[ForeignAnswer], node_name: str) -> Blocked:
    """Another machine answers at an address that the kubelet announces."""
    there = " and ".join(f"machine {each.node_name} answers at {each.address}" for each in foreign)
    return _blocked(
        "NodeIPOfAnotherMachine",
        f"annotation {PROVIDED_NODE_IP}: {there}, and this Node is on machine {node_name}; a providerID is "
        f"written once and for ever, so none is written. Correct --node-ip of the kubelet; {_AGAIN}",
    )


def by_missing_node_ip(node_ip: str, node_name: str) -> Blocked:
    """The fallback providerID needs an address that the machine does not have."""
    return _blocked(
        "NodeIPNotOnMachine",
        f"annotation {PROVIDED_NODE_IP}: the providerID would contain {node_ip}, but machine {node_name} "
        "neither lists this address on a link nor answers there; a providerID is immutable, so no other "
        f"address is used. Correct the link of the machine, or --node-ip of the kubelet; {_AGAIN}",
    )


def by_waiting_for_metadata(why: str) -> Blocked:
    """The machine answers, but its cloud has not told it everything yet."""
    return _blocked(
        "WaitingForPlatformMetadata",
        f"PlatformMetadata: {why}; a providerID is written once and for ever, so nothing is guessed. "
        "Looked at again as soon as Talos reports more, and every 30 s at the latest",
    )


def by_rule_without_provider_id(why: str) -> Blocked:
    """A rule should have given the providerID, and could not."""
    return _blocked(
        "ProviderIDRuleFailed",
        f"platformMetadata.ProviderID: {why}; a providerID is written once and for ever, so none is written "
        "without the rule. Correct it, or what it reads of the machine",
    )


def by_native_format(schemes: Sequence[str]) -> Blocked:
    """The file says that providerIDs are native here, and nobody gives one."""
    return _blocked(
        "NativeProviderIDMissing",
        f"a native format is configured: ownership.providerIDSchemes names {', '.join(schemes)}, and neither "
        "the machine nor a rule gives a providerID; it is written once and for ever, so talos:// does not "
        "stand in for it. Give one by a rule (platformMetadata.ProviderID), or name talos among the schemes",
    )


def by_taint_of_talos() -> Blocked:
    """Talos itself would put the taint back."""
    return _blocked(
        "TaintSetByMachineConfig",
        "machine.nodeTaints sets node.cloudprovider.kubernetes.io/uninitialized: Talos would put it back "
        "whenever it is removed. Remove it from the machine config",
    )


def by_silence(seconds: float) -> Blocked:
    """Nobody has said anything about the Node's machine: the metadata service is down, or far behind."""
    return _blocked(
        "NoFactsYet",
        f"the metadata service has said nothing about this Node's machine for {seconds:.0f} s "
        "(is it running, does it reach NATS and the Talos API?); initialised as soon as it does",
    )


def failed_write(error: Exception) -> str:
    """What Kubernetes said to a write, and when it is tried again."""
    for_good = isinstance(error, PermanentError)
    told = ": ".join((*getattr(error, "__notes__", ()), str(error)))
    return f"{told}; {_WITH_THE_NEXT_WORD if for_good else _AGAIN}"


def by_failed_write(said: str) -> Blocked:
    """All is known, but Kubernetes does not take it; `said` as `failed_write` tells it."""
    return _blocked(WRITE_FAILED, f"writing the Node: {said}")


def by_defect(error: Exception) -> Blocked:
    """What is known of the Node cannot be judged: ours to mend, and no reason to be silent."""
    return _blocked(
        "DefectInTalosCCM",
        f"planning the Node: {type(error).__name__}: {error}; please report it with the labeler's log. "
        f"{_WITH_THE_NEXT_WORD.capitalize()}",
    )


def condition(blocked: Blocked) -> NodeCondition:
    """The Node condition that says it; negative polarity, removed when the Node is initialised."""
    return NodeCondition(
        type=CONDITION_BLOCKED, status="True", reason=blocked.reason, message=blocked.message
    )


def says_so_already(node: Node, blocked: Blocked) -> bool:
    """Whether the Node bears that reason."""
    present = node.condition(CONDITION_BLOCKED)
    return present is not None and (present.status, present.reason) == ("True", blocked.reason)


def to_be_removed(node: Node) -> bool:
    """Whether the condition goes in the write that gives the Node its addresses.

    Where the next write may be refused again, the condition stays until the Node is initialized: else each
    retry would remove it and the next look would set it.
    """
    present = node.condition(CONDITION_BLOCKED)
    return present is not None and (node.initialized or present.reason != WRITE_FAILED)


def _blocked(reason: str, message: str) -> Blocked:
    # Machines have a say in it, and it is read in terminals: one line, nothing that steers them.
    message = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in message)
    return Blocked(reason, message if len(message) <= _MESSAGE_LIMIT else message[: _MESSAGE_LIMIT - 1] + "…")
