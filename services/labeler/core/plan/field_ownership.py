"""Decides for each label, annotation and taint whether the labeler may change it.

A key is ours if the record contains a fingerprint of its current value. All other keys stay unchanged.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from libs.common.cloud_config.kubernetes_names import why_reserved
from libs.common.contract.node import Node, Taint, is_restricted_label
from libs.common.json_errors import JSON_ERRORS
from services.labeler.core.plan.ownership_record import FieldKind, Fingerprints, fingerprint_value

# The ownership of a desired key. In this order: the labeler sets it; the labeler owns it and the value is
# correct; value and record stay unchanged; another writer owns it; the value is correct and its writer
# unknown; the machine config sets it.
KeyOwnership = Literal["set", "ours", "kept", "others", "unknown", "talos"]
_NONE: Final[frozenset[str]] = frozenset()


class KeyState(msgspec.Struct, frozen=True, kw_only=True):
    """The current, desired and recorded values of all keys of one kind on one Node."""

    kind: FieldKind
    current: Mapping[str, str]
    desired: Mapping[str, str]
    recorded: Mapping[str, str | None] = {}
    machine_config_keys: frozenset[str] = _NONE  # talos.dev/owned-*
    retained: frozenset[str] = _NONE  # recorded keys that stay unchanged, desired or not
    adopted_if_equal: frozenset[str] = _NONE  # unrecorded keys to adopt if they have the desired value
    adopted_if_different: frozenset[str] = _NONE  # unrecorded keys to adopt and change
    released: frozenset[str] = _NONE  # absent keys that stay absent: another writer has removed them
    withheld: frozenset[str] = _NONE  # released keys that the Node never had: it was in use before
    kept: Mapping[str, str] = {}  # the recorded `kept`


class KeyChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to all keys of one kind, and their entries in the new record."""

    changes: dict[str, str | None] = {}  # None removes the key
    recorded: Fingerprints = {}
    kept: dict[str, str] = {}  # fingerprints of desired values, of keys that keep another one
    withheld: dict[str, str] = {}  # the same of withheld taints, which the Node lacks
    machine_config_keys: tuple[str, ...] = ()


NO_CHANGES: Final = KeyChanges()  # for annotations and taints of most Nodes


def resolve_ownership(keys: KeyState) -> KeyChanges:
    """Return the changes and the record that follows from them.

    The decision is idempotent: on the changed Node it returns no further change. The new record names a value
    only if the changed Node has it.
    """
    changes: dict[str, str | None] = {}
    recorded: Fingerprints = {}
    for key, desired in keys.desired.items():
        current = keys.current.get(key)
        match _classify_key(keys, key, current, desired):
            case "set":
                changes[key], recorded[key] = desired, fingerprint_value(desired)
            case "ours":
                recorded[key] = fingerprint_value(desired)
            case "kept":
                recorded[key] = keys.recorded[key]
            case "others":
                recorded[key] = None
            case "unknown" if keys.kind == "taints":
                recorded[key] = None  # so that the taint stays absent once its agent has removed it
    for key in keys.recorded:
        _release_key(keys, key, changes, recorded)
    unwritten = _list_unwritten(keys, recorded)
    return KeyChanges(
        changes=changes,
        recorded=recorded,
        kept={key: value for key, value in unwritten.items() if key in keys.current},
        withheld={key: value for key, value in unwritten.items() if key not in keys.current},
        machine_config_keys=tuple(
            key
            for key, desired in (keys.desired.items() if keys.machine_config_keys else ())
            if _is_machine_config_key(keys, key) and keys.current.get(key) != desired
        ),
    )


def list_machine_config_keys(node: Node, kind: FieldKind) -> frozenset[str]:
    """Return the keys that the machine config sets: the JSON list in `talos.dev/owned-labels` for labels.

    Empty if the annotation is missing or invalid.
    """
    annotation = node.annotations.get(f"talos.dev/owned-{kind}", "")
    if not annotation:
        return _NONE
    try:
        return frozenset(msgspec.json.decode(annotation, type=list[str]))
    except JSON_ERRORS:
        return _NONE


def _classify_key(keys: KeyState, key: str, current: str | None, desired: str) -> KeyOwnership:
    if _is_machine_config_key(keys, key):
        return "talos"
    if current is None:
        return _classify_absent(keys, key)
    if key not in keys.recorded:
        return _classify_unrecorded(keys, key, equal=current == desired)
    fingerprint = keys.recorded[key]
    if fingerprint is None or fingerprint != fingerprint_value(current):
        return "others"
    if current == desired:
        return "ours"
    return "kept" if key in keys.retained else "set"


def _classify_absent(keys: KeyState, key: str) -> KeyOwnership:
    if key in keys.released or (key in keys.retained and key in keys.recorded):
        return "others"
    return "set"  # a writer that removes its own key releases it


def _classify_unrecorded(keys: KeyState, key: str, *, equal: bool) -> KeyOwnership:
    if equal:  # another writer may have set the same value: then the key stays when its rule changes
        return "ours" if key in keys.adopted_if_equal else "unknown"
    return "set" if key in keys.adopted_if_different else "others"


def _release_key(keys: KeyState, key: str, changes: dict[str, str | None], recorded: Fingerprints) -> None:
    """Remove a recorded key that is not desired, unless it is retained or another writer owns it.

    A retained key stays in the record with its value only while the Node has this value. Otherwise a person
    could set the same value again later, and the labeler would take it for its own and remove it.
    """
    if key in keys.desired:
        return
    if _is_machine_config_key(keys, key) or why_reserved(keys.kind, _bare_key(keys, key)):
        return  # the labeler never records such a key
    fingerprint, current = keys.recorded[key], keys.current.get(key)
    is_ours = fingerprint is not None and current is not None and fingerprint == fingerprint_value(current)
    if key in keys.retained:
        recorded[key] = fingerprint if is_ours else None
    elif is_ours:
        changes[key] = None


def _list_unwritten(keys: KeyState, recorded: Fingerprints) -> dict[str, str]:
    """Return the fingerprints of values that the labeler would set, of keys that it leaves to other writers.

    While a rule cannot be evaluated, its last value counts.
    """
    unwritten: dict[str, str] = {}
    for key in (key for key, fingerprint in recorded.items() if fingerprint is None):
        is_desired = key in keys.desired
        last = keys.kept.get(key, keys.recorded.get(key))
        desired = fingerprint_value(keys.desired[key]) if is_desired else last
        current = keys.current.get(key)
        is_unset = key in keys.withheld if current is None else fingerprint_value(current) != desired
        if desired is not None and is_unset:
            unwritten[key] = desired
    return unwritten


def _is_machine_config_key(keys: KeyState, key: str) -> bool:
    return (
        bool(keys.machine_config_keys)
        and _bare_key(keys, key) in keys.machine_config_keys
        and not _is_restricted_from_kubelets(keys, key)
    )


def _is_restricted_from_kubelets(keys: KeyState, key: str) -> bool:
    """Return whether kubelets may not set this key; then `talos.dev/owned-*` does not protect it.

    Talos writes that annotation with the kubelet's credential, so a compromised kubelet can write it too.
    The admission plugin NodeRestriction lets no kubelet write a restricted label or add a taint to its Node.
    """
    if keys.kind == "labels":
        return is_restricted_label(key)
    if keys.kind != "taints" or key in keys.released:
        return False
    return all(_bare_key(keys, current) != _bare_key(keys, key) for current in keys.current)


def read_taint_values(taints: Iterable[Taint]) -> dict[str, str]:
    """Return the values of taints by the key that the record has for them."""
    return {taint_key(taint): taint.value for taint in taints}


def taint_key(taint: Taint) -> str:
    """Return the key of a taint in the record; Kubernetes identifies it by key and effect."""
    return f"{taint.key}:{taint.effect}"


def _bare_key(keys: KeyState, key: str) -> str:
    return key.rpartition(":")[0] if keys.kind == "taints" else key
