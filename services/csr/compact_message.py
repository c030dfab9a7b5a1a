"""Drops the parts of messages that csr does not read, before it stores them."""

import msgspec

from libs.common.bus.protocol import Message
from libs.common.contract.events import CsrObserved, NodeEnriched, NodeUnreachable
from libs.common.contract.node import Node, ObjectMeta
from libs.common.contract.signing_request import SigningRequest


def compact_message(message: Message) -> Message:
    """Return the message with all that csr reads from its stream cache and its indexes.

    csr reads Nodes from observations only, and nothing that a decided request asks for. Its indexes know no
    sequences, so the history of addresses contains that of the message.
    """
    match message.event:
        case NodeEnriched(node=node) | NodeUnreachable(node=node) as event:
            history = event.address_history.resolve(message.sequence)
            reduced = msgspec.structs.replace(event, node=_reduce_to_identity(node), address_history=history)
            return _replace_event(message, reduced)
        case CsrObserved(request=request) as event if not request.is_pending:
            return _replace_event(message, msgspec.structs.replace(event, request=_drop_content(request)))
        case _:
            return message


def _replace_event(message: Message, event: NodeEnriched | NodeUnreachable | CsrObserved) -> Message:
    return msgspec.structs.replace(message, event=event)


def _reduce_to_identity(node: Node) -> Node:
    return Node(metadata=ObjectMeta(name=node.name, uid=node.uid))


def _drop_content(request: SigningRequest) -> SigningRequest:
    return msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, request=b""))
