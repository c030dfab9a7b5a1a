"""The record of what we have set on a Node: whatever it does not name is somebody else's.

A kubelet may write annotations of its own Node, so the record counts only with its digest in a label that no
kubelet may write (NodeRestriction): else it could name what keeps the Node apart, and have us remove it.
"""

from hashlib import sha224, sha256
from typing import Final, Literal

import msgspec

from libs.common.contract.node import FIELD_OWNERSHIP_ANNOTATION, FIELD_OWNERSHIP_DIGEST_LABEL, Node

Fingerprints = dict[
    str, str | None
]  # key -> mark of the value that we set; None: others decide about that key
RecordState = Literal["absent", "read", "unreadable", "newer"]

_VERSION: Final = 1
_MAX_RECORD_LENGTH: Final = (
    131_072  # characters; 10,000 keys would not fit into a Node's 256 KiB of annotations
)
_HASH: Final = "sha256:"
_MAX_PLAIN_LENGTH: Final = 63  # every label value and taint value is told as it is


class ManagedFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is ours on one Node. Taints are called `key:Effect`.

    Additive changes only: a version that this one would misread gets another `version`.
    """

    version: int = msgspec.field(name="v", default=0)
    machine: Fingerprints = {}  # labels that say what the machine says: they stay when it falls silent
    labels: Fingerprints = {}  # by rules, as are annotations and taints
    annotations: Fingerprints = {}
    taints: Fingerprints = {}
    provider_id: str = ""  # where a rule has given it


class OwnershipRecord(msgspec.Struct, frozen=True):
    """What the Node says about it."""

    state: RecordState
    managed_fields: ManagedFields = ManagedFields()
    problem: str = ""  # why it is not to be trusted

    @property
    def is_new(self) -> bool:
        """Whether nobody has kept account of this Node, as far as anybody can tell."""
        return self.state in {"absent", "unreadable"}


class _Header(msgspec.Struct):
    version: int = msgspec.field(name="v", default=0)


_ABSENT: Final = OwnershipRecord("absent")
_decode: Final = msgspec.json.Decoder(ManagedFields).decode
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def read_ownership_record(node: Node) -> OwnershipRecord:
    """The Node's record. Whoever may write the Node may have written anything there: nothing is raised.

    The label decides whether there is one: what stands in the annotation without it was never ours.
    """
    text, known = (
        node.annotations.get(FIELD_OWNERSHIP_ANNOTATION),
        node.labels.get(FIELD_OWNERSHIP_DIGEST_LABEL),
    )
    if known is None:
        return (
            _ABSENT
            if text is None
            else OwnershipRecord("absent", problem=f"no label {FIELD_OWNERSHIP_DIGEST_LABEL} is with it")
        )
    if text is None:
        return OwnershipRecord("unreadable", problem="somebody has removed it")
    if compute_digest(text) != known:
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
    """The annotation's value: the same for the same contents, whoever writes it."""
    return _encode(msgspec.structs.replace(owned, version=_VERSION)).decode()


def compute_digest(text: str) -> str:
    """The label's value for that annotation: 56 of the 63 characters that a label may have."""
    return sha224(text.encode("utf-8", "surrogatepass")).hexdigest()


def fingerprint_value(value: str) -> str:
    """What the record keeps of a value: enough to tell whether it is still the one that we set."""
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
