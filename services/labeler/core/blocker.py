"""Builds the reasons why a Node cannot be initialized yet, and the Node condition that reports them."""

from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common.bus.delivery import RETRY_CAP_SECONDS, PermanentError
from libs.common.contract.machine import FaultKind, ForeignNodeIP, MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, PROVIDED_NODE_IP_ANNOTATION, Node, NodeCondition

_MESSAGE_LIMIT: Final = 1024  # characters; the text comes from machines and servers

# The labeler rewrites the condition only when the reason changes, so a reason must not vary between retries.
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
PROVIDER_ID_OF_ANOTHER: Final = "ProviderIDOfAnotherNode"
CONFLICT_RETRY_SECONDS: Final = 10.0
_RETRIED: Final = f"retried for ever, with back-off up to {RETRY_CAP_SECONDS:.0f} s"
_RETRIED_ON_CHANGE: Final = "retried when the Node or its machine changes, and at each resync"
_WAITS_FOR_ANNOTATION: Final = (
    "looked at again when it changes: correct --node-ip of the kubelet"  # until then, metadata cannot query
)


class Blocker(msgspec.Struct, frozen=True):
    """Why a Node is blocked: a CamelCase `reason`, and a `message` with step, endpoint and retries."""

    reason: str
    message: str


def block_on_fault(fault: MachineFault) -> Blocker:
    """Block on the fault for which the machine gave no facts."""
    endpoint = f" at {fault.endpoint}" if fault.endpoint else ""
    retry = _WAITS_FOR_ANNOTATION if fault.kind == "bad_node_ip" else _RETRIED
    return _make_blocker(FAULT_REASONS[fault.kind], f"{fault.step}{endpoint}: {fault.message}; {retry}")


def block_on_bad_node_ip(why: str) -> Blocker:
    """Block on an invalid value of the kubelet's provided-node-ip annotation."""
    text = f"annotation {PROVIDED_NODE_IP_ANNOTATION}: {why}; it is written by the node's kubelet"
    return _make_blocker(FAULT_REASONS["bad_node_ip"], f"{text}; {_WAITS_FOR_ANNOTATION}")


def block_on_foreign_node_ip(foreign: Sequence[ForeignNodeIP], node_name: str) -> Blocker:
    """Block because another machine answers at an address that the kubelet announces."""
    answers = " and ".join(f"machine {each.node_name} answers at {each.address}" for each in foreign)
    return _make_blocker(
        "NodeIPOfAnotherMachine",
        f"annotation {PROVIDED_NODE_IP_ANNOTATION}: {answers}, but this Node runs on machine {node_name}; a "
        f"providerID is immutable, so none is written. Correct --node-ip of the kubelet; {_RETRIED}",
    )


def block_on_missing_node_ip(node_ip: str, node_name: str) -> Blocker:
    """Block because the fallback providerID needs an address that the machine does not have."""
    return _make_blocker(
        "NodeIPNotOnMachine",
        f"annotation {PROVIDED_NODE_IP_ANNOTATION}: the providerID would contain {node_ip}, but machine "
        f"{node_name} "
        "neither lists this address on a link nor answers there; a providerID is immutable, so no other "
        f"address is used. Correct the link of the machine, or --node-ip of the kubelet; {_RETRIED}",
    )


def block_on_incomplete_metadata(why: str) -> Blocker:
    """Block because the machine has not received all its platform metadata yet."""
    return _make_blocker(
        "WaitingForPlatformMetadata",
        f"PlatformMetadata: {why}; a providerID is written once and for ever, so nothing is guessed. "
        "Looked at again as soon as Talos reports more, and every 30 s at the latest",
    )


def block_on_failed_provider_id_rule(why: str) -> Blocker:
    """Block because the rule that sets the providerID failed."""
    return _make_blocker(
        "ProviderIDRuleFailed",
        f"platformMetadata.ProviderID: {why}; a providerID is immutable, so none is written without the "
        "rule. Correct the rule, or the machine data that it reads",
    )


def block_on_missing_native_provider_id(schemes: Sequence[str]) -> Blocker:
    """Block because --cloud-config demands a native providerID and neither machine nor rule gives one."""
    return _make_blocker(
        "NativeProviderIDMissing",
        f"ownership.providerIDSchemes requires {' or '.join(schemes)}, but neither the machine nor a rule "
        "gives a providerID; a providerID is immutable, so the fallback talos:// is not written. Set one by "
        "a rule (platformMetadata.ProviderID), or add talos to the schemes",
    )


def block_on_provider_id_of_another(provider_id: str, other: str, why: str) -> Blocker:
    """Block because another Node has the providerID, or will get it."""
    return _make_blocker(
        PROVIDER_ID_OF_ANOTHER,
        f"providerID {provider_id!r} belongs to Node {other}: {why}. A providerID is immutable, so none is "
        "written. Correct the rule or the platform metadata that give the same one to two machines, or "
        f"delete Node {other} if its machine no longer exists. Retried every {CONFLICT_RETRY_SECONDS:.0f} s",
    )


def block_on_machine_config_taint() -> Blocker:
    """Block because the machine config sets the uninitialized taint, so Talos would restore it."""
    return _make_blocker(
        "TaintSetByMachineConfig",
        "machine.nodeTaints sets node.cloudprovider.kubernetes.io/uninitialized: Talos would restore "
        "it after each removal. Remove it from the machine config",
    )


def block_on_missing_facts(seconds: float) -> Blocker:
    """Block because metadata has published nothing about the Node's machine: it is down or far behind."""
    return _make_blocker(
        "NoFactsYet",
        f"the metadata service has published nothing about this Node's machine for {seconds:.0f} s. Check "
        "that it runs and reaches NATS and the Talos API; the Node is initialized as soon as it publishes",
    )


def describe_failed_write(error: Exception) -> str:
    """Return the API server's error for a write, and when the labeler retries."""
    is_permanent = isinstance(error, PermanentError)
    text = ": ".join((*getattr(error, "__notes__", ()), str(error)))
    return f"{text}; {_RETRIED_ON_CHANGE if is_permanent else _RETRIED}"


def block_on_failed_write(description: str) -> Blocker:
    """Block because Kubernetes rejects the write; `description` is from `describe_failed_write`."""
    return _make_blocker(WRITE_FAILED, f"writing the Node: {description}")


def block_on_defect(error: Exception) -> Blocker:
    """Block because planning failed with an unexpected error, which is a defect of talos-ccm."""
    return _make_blocker(
        "DefectInTalosCCM",
        f"planning the Node: {type(error).__name__}: {error}; please report it with the labeler's log. "
        f"{_RETRIED_ON_CHANGE.capitalize()}",
    )


def build_condition(blocker: Blocker) -> NodeCondition:
    """Build the Node condition: negative polarity, removed when the Node is initialized."""
    return NodeCondition(
        type=BLOCKED_CONDITION, status="True", reason=blocker.reason, message=blocker.message
    )


def is_reported_on(node: Node, blocker: Blocker) -> bool:
    """Return whether the Node's blocking condition has the reason of this blocker."""
    condition = node.find_condition(BLOCKED_CONDITION)
    return condition is not None and (condition.status, condition.reason) == ("True", blocker.reason)


def _make_blocker(reason: str, message: str) -> Blocker:
    # The text contains machine input and is read in terminals: one line without control characters.
    message = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in message)
    return Blocker(reason, message if len(message) <= _MESSAGE_LIMIT else message[: _MESSAGE_LIMIT - 1] + "…")
