"""The record of what we have set on a Node: whatever it does not name is somebody else's.

A kubelet may write annotations of its own Node, so the record counts only with its digest in a label that no
kubelet may write (NodeRestriction): else it could name what keeps the Node apart, and have us remove it.
"""

from hashlib import sha224, sha256
from typing import Final, Literal

import msgspec

from libs.common.node import OWNED_RECORD, RECORD_DIGEST, Node

Marks = dict[str, str | None]  # key -> mark of the value that we set; None: others decide about that key
State = Literal["absent", "read", "unreadable", "newer"]

_VERSION: Final = 1
_LIMIT: Final = 131_072  # characters; 10,000 keys would not fit into a Node's 256 KiB of annotations
_HASH: Final = "sha256:"
_LONGEST_PLAIN: Final = 63  # every label value and taint value is told as it is


class Owned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is ours on one Node. Taints are called `key:Effect`.

    Additive changes only: a version that this one would misread gets another `version`.
    """

    version: int = msgspec.field(name="v", default=0)
    machine: Marks = {}  # labels that say what the machine says: they stay when it falls silent
    labels: Marks = {}  # by rules, as are annotations and taints
    annotations: Marks = {}
    taints: Marks = {}
    provider_id: str = ""  # where a rule has given it


class Record(msgspec.Struct, frozen=True):
    """What the Node says about it."""

    state: State
    owned: Owned = Owned()
    problem: str = ""  # why it is not to be trusted

    @property
    def is_first(self) -> bool:
        """Whether nobody has kept account of this Node, as far as anybody can tell."""
        return self.state in {"absent", "unreadable"}


class _Header(msgspec.Struct):
    version: int = msgspec.field(name="v", default=0)


_ABSENT: Final = Record("absent")
_decode: Final = msgspec.json.Decoder(Owned).decode
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def record_of(node: Node) -> Record:
    """The Node's record. Whoever may write the Node may have written anything there: nothing is raised.

    The label decides whether there is one: what stands in the annotation without it was never ours.
    """
    text, known = node.annotations.get(OWNED_RECORD), node.labels.get(RECORD_DIGEST)
    if known is None:
        return _ABSENT if text is None else Record("absent", problem=f"no label {RECORD_DIGEST} is with it")
    if text is None:
        return Record("unreadable", problem="somebody has removed it")
    if digest(text) != known:
        return Record("unreadable", problem=f"somebody has changed it: label {RECORD_DIGEST} is not its own")
    return _read(text)


def _read(text: str) -> Record:
    if len(text) > _LIMIT:
        return Record("unreadable", problem=f"it has {len(text)} characters, more than {_LIMIT}")
    try:
        owned = _decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        return _unread(text, str(error))
    return Record("read", owned) if owned.version == _VERSION else _unread(text, "it names no version")


def written(owned: Owned) -> str:
    """The annotation's value: the same for the same contents, whoever writes it."""
    return _encode(msgspec.structs.replace(owned, version=_VERSION)).decode()


def digest(text: str) -> str:
    """The label's value for that annotation: 56 of the 63 characters that a label may have."""
    return sha224(text.encode("utf-8", "surrogatepass")).hexdigest()


def mark(value: str) -> str:
    """What the record keeps of a value: enough to tell whether it is still the one that we set."""
    if len(value) <= _LONGEST_PLAIN and not value.startswith(_HASH):
        return value
    return _HASH + sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _unread(text: str, problem: str) -> Record:
    try:
        version = msgspec.json.decode(text, type=_Header).version
    except (msgspec.DecodeError, RecursionError):
        version = 0
    if version > _VERSION:
        return Record("newer", problem=f"it is of version {version}, written by a newer talos-ccm")
    return Record("unreadable", problem=problem)
