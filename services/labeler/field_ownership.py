"""Whose a label, an annotation or a taint is, and so what becomes of it: one decision for each key.

A key is ours if the record names the value that stands there. Everybody else's is never touched.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from libs.common.cloud_config.model import Kind
from libs.common.cloud_config.reserved_keys import why_reserved
from libs.common.contract.node import is_restricted_label
from services.labeler.ownership_record import Fingerprints, fingerprint_value

# What becomes of a wanted key: set it; it is ours as it stands; it stays as it is and as it is recorded;
# others decide about it; it says what we want and nobody knows by whom; the machine config sets it.
KeyOwnership = Literal["set", "ours", "kept", "others", "nobody", "talos"]
_NONE: Final[frozenset[str]] = frozenset()


class OwnershipConflict(msgspec.Struct, frozen=True):
    """A key that is somebody else's from now on."""

    key: str
    current: str
    desired: str
    was_ours: bool


class KeyState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of all keys of one kind, on one Node."""

    kind: Kind
    current: Mapping[str, str]
    desired: Mapping[str, str]
    recorded: Mapping[str, str | None] = {}
    machine_config_keys: frozenset[str] = _NONE  # talos.dev/owned-*
    retained: frozenset[str] = _NONE  # recorded keys that stay as they are, wanted or not
    adopted_if_equal: frozenset[str] = _NONE  # keys the record may not name, because nobody has kept one
    adopted_if_different: frozenset[str] = _NONE
    released: frozenset[str] = _NONE  # absent keys that are not set: others have removed them


class KeyChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of them."""

    changes: dict[str, str | None]  # None removes the key
    recorded: Fingerprints
    conflicts: tuple[OwnershipConflict, ...] = ()
    machine_config_keys: tuple[str, ...] = ()


def resolve_ownership(keys: KeyState) -> KeyChanges:
    """The changes, and the record as it stands after them.

    Deciding again on what they lead to changes nothing more.
    """
    changes: dict[str, str | None] = {}
    recorded: Fingerprints = {}
    theirs: list[OwnershipConflict] = []
    left: list[str] = []
    for key, wanted in keys.desired.items():
        present = keys.current.get(key)
        match _classify_key(keys, key, present, wanted):
            case "set":
                changes[key], recorded[key] = wanted, fingerprint_value(wanted)
            case "ours":
                recorded[key] = fingerprint_value(wanted)
            case "kept":
                recorded[key] = keys.recorded[key]
            case "others":
                recorded[key] = None
                if present is not None and present != wanted and keys.recorded.get(key, "") is not None:
                    theirs.append(OwnershipConflict(key, present, wanted, was_ours=key in keys.recorded))
            case "nobody" if keys.kind == "taints":
                recorded[key] = None  # once its agent has removed it, it must not come back
            case "talos" if present != wanted:
                left.append(key)
    for key in keys.recorded.keys() - keys.desired.keys():
        _release_key(keys, key, changes, recorded)
    return KeyChanges(
        changes=changes, recorded=recorded, conflicts=tuple(theirs), machine_config_keys=tuple(left)
    )


def _classify_key(keys: KeyState, key: str, present: str | None, wanted: str) -> KeyOwnership:
    if _is_machine_config_key(keys, key):
        return "talos"
    if present is None:
        return _classify_absent(keys, key)
    if key not in keys.recorded:
        return _classify_unrecorded(keys, key, equal=present == wanted)
    was = keys.recorded[key]
    if was is None or was != fingerprint_value(present):
        return "others"
    if present == wanted:
        return "ours"
    return "kept" if key in keys.retained else "set"


def _classify_absent(keys: KeyState, key: str) -> KeyOwnership:
    if key in keys.released:
        return "others"
    if key in keys.retained and key in keys.recorded:
        return "kept"
    return "set"  # whoever removes a key that was theirs hands it to us


def _classify_unrecorded(keys: KeyState, key: str, *, equal: bool) -> KeyOwnership:
    if equal:  # perhaps somebody's who happens to want the same: then it stays when we want something else
        return "ours" if key in keys.adopted_if_equal else "nobody"
    return "set" if key in keys.adopted_if_different else "others"


def _release_key(keys: KeyState, key: str, changes: dict[str, str | None], recorded: Fingerprints) -> None:
    was, present = keys.recorded[key], keys.current.get(key)
    if _is_machine_config_key(keys, key) or why_reserved(keys.kind, _bare_key(keys, key)):
        return  # a record that names such a key was not written by us
    if key in keys.retained:
        recorded[key] = was
    elif was is not None and present is not None and was == fingerprint_value(present):
        changes[key] = None


def _is_machine_config_key(keys: KeyState, key: str) -> bool:
    return (
        bool(keys.machine_config_keys)
        and _bare_key(keys, key) in keys.machine_config_keys
        and not _is_restricted_from_kubelets(keys, key)
    )


def _is_restricted_from_kubelets(keys: KeyState, key: str) -> bool:
    """Whether no kubelet may set this key: then its annotation `talos.dev/owned-*` gives it no veto either.

    Talos annotates with the kubelet's rights, so a compromised kubelet can write the same annotation. The
    admission plugin NodeRestriction lets no kubelet write a restricted label or add a taint to its Node.
    """
    if keys.kind == "labels":
        return is_restricted_label(key)
    if keys.kind != "taints" or key in keys.released:
        return False
    return all(_bare_key(keys, present) != _bare_key(keys, key) for present in keys.current)


def _bare_key(keys: KeyState, key: str) -> str:
    return key.rpartition(":")[0] if keys.kind == "taints" else key
