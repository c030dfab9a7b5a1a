"""Builds the reasons why a Node cannot be initialized yet, and the Node condition that reports them.

A `Notice` is such a reason, or names what else needs attention on a Node.
"""

from typing import Final

import msgspec

from libs.common.bus.delivery import RETRY_CAP_SECONDS, PermanentError
from libs.common.bus.stream_limits import MAX_MESSAGE_AGE_TEXT
from libs.common.contract.machine import FAULT_KINDS, MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, PROVIDED_NODE_IP_ANNOTATION, Node, NodeCondition

_MAX_MESSAGE_LENGTH: Final = 1024  # characters; Kubernetes accepts no longer Event

WRITE_FAILED: Final = "NodeWriteFailed"
PROVIDER_ID_OF_ANOTHER: Final = "ProviderIDOfAnotherNode"
WAITING_FOR_INSTANCE: Final = "WaitingForInstanceMetadata"
WAITING_FOR_OTHER_NODES: Final = "WaitingForOtherNodes"
CONFLICT_RETRY_SECONDS: Final = 10.0
# Blockers that may end without a message about the Node, and when it is planned again.
RETRY_SECONDS: Final = {
    PROVIDER_ID_OF_ANOTHER: CONFLICT_RETRY_SECONDS,
    WAITING_FOR_OTHER_NODES: CONFLICT_RETRY_SECONDS,
    WAITING_FOR_INSTANCE: 5.0,
}
_RETRIED: Final = f"retried for ever, with back-off up to {RETRY_CAP_SECONDS:.0f} s"
_RETRIED_ON_CHANGE: Final = "retried when the Node or its machine changes, and at each resync"
# Until it changes, metadata cannot query the machine.
_WAITS_FOR_ANNOTATION: Final = "looked at again when it changes: correct --node-ip of the kubelet"


# The text of each other reason; `{...}` are the values that `block` gets.
_TEXTS: Final = {
    "NodeIPOfAnotherMachine": (
        f"annotation {PROVIDED_NODE_IP_ANNOTATION}: {{answers}}, but this Node runs on machine {{machine}}; "
        f"a providerID is immutable, so none is written. Correct --node-ip of the kubelet; {_RETRIED}"
    ),
    # The fallback providerID needs an address that the machine does not have.
    "NodeIPNotOnMachine": (
        f"annotation {PROVIDED_NODE_IP_ANNOTATION}: the providerID would contain {{node_ip}}, but machine "
        "{machine} neither lists this address on a link nor answers there; a providerID is immutable, so no "
        f"other address is used. Correct the link of the machine, or --node-ip of the kubelet; {_RETRIED}"
    ),
    "ProvidedNodeIPInvalid": (
        f"annotation {PROVIDED_NODE_IP_ANNOTATION}: {{why}}; it is written by the node's kubelet; "
        f"{_WAITS_FOR_ANNOTATION}"
    ),
    "WaitingForPlatformMetadata": (
        "PlatformMetadata: {why}; a providerID is written once and for ever, so nothing is guessed. Looked "
        "at again as soon as Talos reports more, and at least every 30 s"
    ),
    WAITING_FOR_INSTANCE: (
        "Talos does not know the cloud of this machine, and --cloud-metadata-accounts has not supplied it: "
        "{why}; a providerID is immutable, so none is written without it. Looked at again every "
        f"{RETRY_SECONDS[WAITING_FOR_INSTANCE]:.0f} s"
    ),
    "ProviderIDRuleFailed": (
        "platformMetadata.ProviderID: {why}; a providerID is immutable, so none is written without the rule. "
        "Correct the rule, or the machine data that it reads"
    ),
    "NativeProviderIDMissing": (
        "ownership.providerIDSchemes requires {schemes}, but neither the machine nor a rule gives a "
        "providerID; a providerID is immutable, so the fallback talos:// is not written. Set one by a rule "
        "(platformMetadata.ProviderID), or add talos to the schemes"
    ),
    PROVIDER_ID_OF_ANOTHER: (
        "providerID {provider_id!r} belongs to Node {other}: {why}. A providerID is immutable, so none is "
        "written. Correct the rule or the platform metadata that give the same one to two machines, or "
        "delete Node {other} if its machine no longer exists. "
        f"Retried every {CONFLICT_RETRY_SECONDS:.0f} s"
    ),
    WAITING_FOR_OTHER_NODES: (
        "providerID {provider_id!r} may belong to Node {other}: {why}. A providerID is immutable, so none is "
        "written. Let an upgrade finish; else the message is published again, or expires within "
        f"{MAX_MESSAGE_AGE_TEXT}. Retried every {CONFLICT_RETRY_SECONDS:.0f} s"
    ),
    "TaintSetByMachineConfig": (
        "machine.nodeTaints sets node.cloudprovider.kubernetes.io/uninitialized: Talos would restore it "
        "after each removal. Remove it from the machine config"
    ),
    # Metadata is down or far behind.
    "NoFactsYet": (
        "the metadata service has published nothing about this Node's machine for {seconds:.0f} s. Check "
        "that it runs and reaches NATS and the Talos API; the Node is initialized as soon as it publishes"
    ),
    WRITE_FAILED: "writing the Node: {error}",  # `error` is from `describe_failed_write`
    "DefectInTalosCCM": (
        "planning the Node: {error}; please report it with the labeler's log. "
        f"{_RETRIED_ON_CHANGE.capitalize()}"
    ),
}


class Notice(msgspec.Struct, frozen=True):
    """The reason and message of one Event or, for a blocker, of the blocking condition too."""

    reason: str  # CamelCase
    message: str
    is_warning: bool = True


def make_notice(reason: str, text: str) -> Notice:
    """Return a warning with this text in one bounded line.

    The text contains input of machines and other controllers, and is read in terminals.
    """
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    is_short = len(plain) <= _MAX_MESSAGE_LENGTH
    return Notice(reason, plain if is_short else plain[: _MAX_MESSAGE_LENGTH - 1] + "…")


def block(reason: str, **values: object) -> Notice:
    """Return the blocker with that reason; `values` complete its text."""
    return make_notice(reason, _TEXTS[reason].format_map(values))


def block_on_fault(fault: MachineFault) -> Notice:
    """Block on the fault for which the machine gave no facts."""
    endpoint = f" at {fault.endpoint}" if fault.endpoint else ""
    retry = _WAITS_FOR_ANNOTATION if fault.kind == "bad_node_ip" else _RETRIED
    reason = FAULT_KINDS[fault.kind].block_reason
    return make_notice(reason, f"{fault.step}{endpoint}: {fault.message}; {retry}")


def describe_failed_write(error: Exception) -> str:
    """Return the API server's error for a write, and when the labeler retries."""
    is_permanent = isinstance(error, PermanentError)
    text = ": ".join((*getattr(error, "__notes__", ()), str(error)))
    return f"{text}; {_RETRIED_ON_CHANGE if is_permanent else _RETRIED}"


def build_condition(blocker: Notice) -> NodeCondition:
    """Build the Node condition: negative polarity, removed when the Node is initialized."""
    return NodeCondition(
        type=BLOCKED_CONDITION, status="True", reason=blocker.reason, message=blocker.message
    )


def is_reported_on(node: Node, blocker: Notice) -> bool:
    """Return whether the Node's blocking condition has the reason of this blocker."""
    condition = node.find_condition(BLOCKED_CONDITION)
    return condition is not None and (condition.status, condition.reason) == ("True", blocker.reason)
