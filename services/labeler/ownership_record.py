"""Reads and writes the ownership record: the annotation that lists the keys the labeler set on a Node.

A kubelet may write annotations of its own Node, so the record counts only with its digest in a label that
NodeRestriction protects. Otherwise a kubelet could list a taint that isolates its Node, and the labeler would
remove that taint.
"""

from hashlib import sha224, sha256
from typing import Final, Literal

import msgspec

from libs.common.contract.node import FIELD_OWNERSHIP_ANNOTATION, FIELD_OWNERSHIP_DIGEST_LABEL, Node

Fingerprints = dict[
    str, str | None
]  # key -> fingerprint of the value that the labeler set; None: another writer owns the key
RecordState = Literal["absent", "read", "unreadable", "newer"]

_VERSION: Final = 1
_MAX_RECORD_LENGTH: Final = (
    131_072  # characters; 10,000 keys would not fit into a Node's 256 KiB of annotations
)
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
    provider_id: str = ""  # set only if a rule gave it


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


_ABSENT: Final = OwnershipRecord("absent")
_decode: Final = msgspec.json.Decoder(ManagedFields).decode
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
            _ABSENT
            if text is None
            else OwnershipRecord("absent", problem=f"no label {FIELD_OWNERSHIP_DIGEST_LABEL} is with it")
        )
    if text is None:
        return OwnershipRecord("unreadable", problem="somebody has removed it")
    if compute_digest(text) != digest:
        return OwnershipRecord(
            "unreadable",
            problem=f"somebody has changed it: label {FIELD_OWNERSHIP_DIGEST_LABEL} is not its own",
        )
    return _decode_record(text)


def _decode_record(text: str) -> OwnershipRecord:
    if len(text) > _MAX_RECORD_LENGTH:
        return OwnershipRecord(
            "unreadable", problem=f"it has {len(text)} characters, more than {_MAX_RECORD_LENGTH}"
        )
    try:
        owned = _decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        return _classify_unreadable(text, str(error))
    return (
        OwnershipRecord("read", owned)
        if owned.version == _VERSION
        else _classify_unreadable(text, "it names no version")
    )


def encode_managed_fields(owned: ManagedFields) -> str:
    """Return the annotation's value: equal contents give equal text in every replica."""
    return _encode(msgspec.structs.replace(owned, version=_VERSION)).decode()


def compute_digest(text: str) -> str:
    """Return the label's value for that annotation: 56 hex digits; a label may have 63 characters."""
    return sha224(text.encode("utf-8", "surrogatepass")).hexdigest()


def fingerprint_value(value: str) -> str:
    """Return the value itself or, if it is long, its hash; the record compares it with the current value."""
    if len(value) <= _MAX_PLAIN_LENGTH and not value.startswith(_HASH):
        return value
    return _HASH + sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _classify_unreadable(text: str, problem: str) -> OwnershipRecord:
    try:
        version = msgspec.json.decode(text, type=_Header).version
    except (msgspec.DecodeError, RecursionError):
        version = 0
    if version > _VERSION:
        return OwnershipRecord("newer", problem=f"it is of version {version}, written by a newer talos-ccm")
    return OwnershipRecord("unreadable", problem=problem)
