"""Reads and writes the ownership record: the annotation that lists the keys the labeler set on a Node.

A kubelet may write annotations of its own Node, so the record counts only with its digest in a label that
NodeRestriction protects. Otherwise a kubelet could list a taint that isolates its Node, and the labeler would
remove that taint.
"""

from hashlib import sha256
from itertools import product
from typing import Final, Literal

import msgspec

from libs.common.contract.node import FIELD_OWNERSHIP_ANNOTATION, FIELD_OWNERSHIP_DIGEST_LABEL, Node
from libs.common.contract.node_patch import NodeChanges, build_node_patch
from libs.common.contract.protected_annotation import compute_digest, has_digest
from libs.common.json_errors import JSON_ERRORS

Fingerprints = dict[
    str, str | None
]  # key -> fingerprint of the value that the labeler set; None: another writer owns the key
FieldKind = Literal["labels", "annotations", "taints"]
RecordState = Literal["absent", "read", "unreadable", "newer"]

RECORD_VERSION: Final = 1
_HASH: Final = "sha256:"
_MAX_PLAIN_LENGTH: Final = 63  # so the record contains every label and taint value in plain text


class ManagedFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The keys that the labeler owns on one Node, with fingerprints. The key of a taint is `key:Effect`.

    Only additive changes are allowed; a format that this version would misread needs another `version`.
    """

    version: int = msgspec.field(name="v", default=0)
    machine: Fingerprints = {}  # labels from machine facts: they stay when the machine stops reporting them
    labels: Fingerprints = {}  # set by rules, like annotations and taints
    annotations: Fingerprints = {}
    taints: Fingerprints = {}
    provider_id: str = ""  # set only if a rule or a cloud account gave it
    # Fingerprints of values that the labeler would set: of keys that another writer has, by their kind, and
    # of taints that it does not set on a Node that was in use before its record began.
    kept: dict[FieldKind, dict[str, str]] = {}
    withheld: dict[str, str] = {}


class OwnershipRecord(msgspec.Struct, frozen=True):
    """The parsed ownership record of one Node, and whether it can be trusted."""

    state: RecordState
    managed_fields: ManagedFields = ManagedFields()
    problem: str = ""  # why the annotation cannot be trusted

    @property
    def is_new(self) -> bool:
        """Return whether there is no usable record of this Node."""
        return self.state in {"absent", "unreadable"}


class _Header(msgspec.Struct):
    version: int = msgspec.field(name="v", default=0)


NO_RECORD: Final = OwnershipRecord("absent")
decode_managed_fields: Final = msgspec.json.Decoder(ManagedFields).decode
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def read_ownership_record(node: Node) -> OwnershipRecord:
    """Return the Node's record. Never raises: any writer of the Node may have changed the annotation.

    The label decides whether a record exists: the labeler never wrote an annotation without it.
    """
    text, digest = (
        node.annotations.get(FIELD_OWNERSHIP_ANNOTATION),
        node.labels.get(FIELD_OWNERSHIP_DIGEST_LABEL),
    )
    if digest is None:
        return (
            NO_RECORD
            if text is None
            else OwnershipRecord("absent", problem=f"the Node has no label {FIELD_OWNERSHIP_DIGEST_LABEL}")
        )
    if text is None:
        return OwnershipRecord("unreadable", problem="another writer has removed it")
    if not has_digest(node, text, FIELD_OWNERSHIP_DIGEST_LABEL):
        return OwnershipRecord(
            "unreadable",
            problem=f"another writer has changed it: label {FIELD_OWNERSHIP_DIGEST_LABEL} does not match",
        )
    return _decode_record(text)


def restore_ownership_record(record: OwnershipRecord, node: Node, assumed: ManagedFields) -> OwnershipRecord:
    """Return `assumed`, the fields that a Node without a record would get, if the digest matches them.

    An absent taint of `assumed` may be withheld, or removed by its agent. Otherwise the keys may belong to
    any writer, and the new record contains only the providerID. Its origin is unknown; recording it keeps the
    Node ours.
    """
    for provider_id, withheld in product(("", node.spec.provider_id), (assumed.withheld, {})):
        fields = msgspec.structs.replace(assumed, provider_id=provider_id, withheld=withheld)
        if has_digest(node, encode_managed_fields(fields), FIELD_OWNERSHIP_DIGEST_LABEL):
            return OwnershipRecord("read", fields, record.problem)
    return msgspec.structs.replace(record, managed_fields=ManagedFields(provider_id=node.spec.provider_id))


def add_ownership_record(
    changes: NodeChanges, node: Node, record: OwnershipRecord, fields: ManagedFields
) -> NodeChanges:
    """Return the changes with the record of these fields, if it must be written with them."""
    if not _must_write(node, record, fields, changes):
        return changes
    text = encode_managed_fields(fields)
    return msgspec.structs.replace(
        changes,
        labels=changes.labels | {FIELD_OWNERSHIP_DIGEST_LABEL: compute_digest(text)},
        annotations=changes.annotations | {FIELD_OWNERSHIP_ANNOTATION: text},
    )


def _decode_record(text: str) -> OwnershipRecord:
    try:
        owned = decode_managed_fields(text)
    except JSON_ERRORS as error:
        return _classify_unreadable(text, str(error))
    return (
        OwnershipRecord("read", owned)
        if owned.version == RECORD_VERSION
        else _classify_unreadable(text, "it has no version")
    )


def encode_managed_fields(owned: ManagedFields) -> str:
    """Return the annotation's value: equal contents give equal text in every replica."""
    return _encode(msgspec.structs.replace(owned, version=RECORD_VERSION)).decode()


def fingerprint_value(value: str) -> str:
    """Return the value itself or, if it is long, its hash; the record compares it with the current value."""
    if len(value) <= _MAX_PLAIN_LENGTH and not value.startswith(_HASH):
        return value
    return _HASH + sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _classify_unreadable(text: str, problem: str) -> OwnershipRecord:
    try:
        version = msgspec.json.decode(text, type=_Header).version
    except JSON_ERRORS:
        version = 0
    if version > RECORD_VERSION:
        return OwnershipRecord("newer", problem=f"it has version {version}, written by a newer talos-ccm")
    return OwnershipRecord("unreadable", problem=problem)


def _must_write(node: Node, record: OwnershipRecord, fields: ManagedFields, changes: NodeChanges) -> bool:
    """Return whether the patch must contain the record.

    A Node that was initialized before records existed gets one with its first change or rule, because an
    upgrade must not write to every Node of a cluster.
    """
    match record.state:
        case "newer":
            return False
        case "read":
            return fields != record.managed_fields or bool(record.problem)
        case "unreadable":
            return True
    if record.problem:
        return True  # replace an annotation that is not a record and could be mistaken for one
    by_rules = fields.labels or fields.annotations or fields.taints
    return bool(not node.is_initialized or by_rules or build_node_patch(node, changes))
