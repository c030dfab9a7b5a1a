"""Whose a label, an annotation or a taint is, and so what becomes of it: one decision for each key.

A key is ours if the record names the value that stands there. Everybody else's is never touched.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from libs.common.cloud_config.refused_keys import refused_key
from libs.common.cloud_config.rule import Kind
from libs.common.node import is_restricted_label
from services.labeler.owned import Marks, mark

# What becomes of a wanted key: set it; it is ours as it stands; it stays as it is and as it is recorded;
# others decide about it; it says what we want and nobody knows by whom; the machine config sets it.
Verdict = Literal["set", "ours", "kept", "others", "nobody", "talos"]
_NONE: Final[frozenset[str]] = frozenset()


class Theirs(msgspec.Struct, frozen=True):
    """A key that is somebody else's from now on."""

    key: str
    present: str
    wanted: str
    was_ours: bool


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of all keys of one kind, on one Node."""

    kind: Kind
    present: Mapping[str, str]
    wanted: Mapping[str, str]
    recorded: Mapping[str, str | None] = {}
    of_talos: frozenset[str] = _NONE  # talos.dev/owned-*
    retained: frozenset[str] = _NONE  # recorded keys that stay as they are, wanted or not
    ours_if_equal: frozenset[str] = _NONE  # keys the record may not name, because nobody has kept one
    ours_if_different: frozenset[str] = _NONE
    released: frozenset[str] = _NONE  # absent keys that are not set: others have removed them


class KeyChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of them."""

    changes: dict[str, str | None]  # None removes the key
    recorded: Marks
    theirs: tuple[Theirs, ...] = ()
    left_to_talos: tuple[str, ...] = ()


def decide(keys: Keys) -> KeyChanges:
    """The changes, and the record as it stands after them.

    Deciding again on what they lead to changes nothing more.
    """
    changes: dict[str, str | None] = {}
    recorded: Marks = {}
    theirs: list[Theirs] = []
    left: list[str] = []
    for key, wanted in keys.wanted.items():
        present = keys.present.get(key)
        match _verdict(keys, key, present, wanted):
            case "set":
                changes[key], recorded[key] = wanted, mark(wanted)
            case "ours":
                recorded[key] = mark(wanted)
            case "kept":
                recorded[key] = keys.recorded[key]
            case "others":
                recorded[key] = None
                if present is not None and present != wanted and keys.recorded.get(key, "") is not None:
                    theirs.append(Theirs(key, present, wanted, was_ours=key in keys.recorded))
            case "nobody" if keys.kind == "taints":
                recorded[key] = None  # once its agent has removed it, it must not come back
            case "talos" if present != wanted:
                left.append(key)
    for key in keys.recorded.keys() - keys.wanted.keys():
        _unwanted(keys, key, changes, recorded)
    return KeyChanges(changes=changes, recorded=recorded, theirs=tuple(theirs), left_to_talos=tuple(left))


def _verdict(keys: Keys, key: str, present: str | None, wanted: str) -> Verdict:
    if _of_talos(keys, key):
        return "talos"
    if present is None:
        return _absent(keys, key)
    if key not in keys.recorded:
        return _unrecorded(keys, key, equal=present == wanted)
    was = keys.recorded[key]
    if was is None or was != mark(present):
        return "others"
    if present == wanted:
        return "ours"
    return "kept" if key in keys.retained else "set"


def _absent(keys: Keys, key: str) -> Verdict:
    if key in keys.released:
        return "others"
    if key in keys.retained and key in keys.recorded:
        return "kept"
    return "set"  # whoever removes a key that was theirs hands it to us


def _unrecorded(keys: Keys, key: str, *, equal: bool) -> Verdict:
    if equal:  # perhaps somebody's who happens to want the same: then it stays when we want something else
        return "ours" if key in keys.ours_if_equal else "nobody"
    return "set" if key in keys.ours_if_different else "others"


def _unwanted(keys: Keys, key: str, changes: dict[str, str | None], recorded: Marks) -> None:
    was, present = keys.recorded[key], keys.present.get(key)
    if _of_talos(keys, key) or refused_key(keys.kind, _name(keys, key)):
        return  # a record that names such a key was not written by us
    if key in keys.retained:
        recorded[key] = was
    elif was is not None and present is not None and was == mark(present):
        changes[key] = None


def _of_talos(keys: Keys, key: str) -> bool:
    return bool(keys.of_talos) and _name(keys, key) in keys.of_talos and not _is_beyond_kubelets(keys, key)


def _is_beyond_kubelets(keys: Keys, key: str) -> bool:
    """Whether no kubelet may set this key: then its annotation `talos.dev/owned-*` gives it no veto either.

    Talos annotates with the kubelet's rights, so a compromised kubelet can write the same annotation. The
    admission plugin NodeRestriction lets no kubelet write a restricted label or add a taint to its Node.
    """
    if keys.kind == "labels":
        return is_restricted_label(key)
    if keys.kind != "taints" or key in keys.released:
        return False
    return all(_name(keys, present) != _name(keys, key) for present in keys.present)


def _name(keys: Keys, key: str) -> str:
    return key.rpartition(":")[0] if keys.kind == "taints" else key
