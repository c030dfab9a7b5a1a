"""Annotations of a Node that count only with their digest in a label that NodeRestriction protects.

A kubelet may write every annotation of its own Node, and no label under node-restriction.kubernetes.io/
(https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#noderestriction).
"""

from hashlib import sha224

from libs.common.contract.node import Node


def compute_digest(text: str) -> str:
    """Return the label's value for that annotation: 56 hex digits; a label may have 63 characters."""
    return sha224(text.encode("utf-8", "surrogatepass")).hexdigest()


def has_digest(node: Node, text: str, label: str) -> bool:
    """Return whether the Node's label has the digest of the text."""
    return node.labels.get(label) == compute_digest(text)
