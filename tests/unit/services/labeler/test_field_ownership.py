"""Field ownership: each case, and that a decision is idempotent."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.labeler.core.plan.field_ownership import KeyState, resolve_ownership
from services.labeler.core.plan.ownership_record import fingerprint_value

K = "example.com/k"
EQUAL = {"adopted_if_equal": frozenset({K})}
DIFFERENT = {"adopted_if_different": frozenset({K})}
TALOS = {"machine_config_keys": frozenset({K})}
RETAINED = {"retained": frozenset({K})}
RELEASED = {"released": frozenset({K})}
NOT_THERE: dict[str, Any] = {}


def keys(present: str | None, wanted: str | None, recorded: Any, more: dict[str, Any]) -> KeyState:
    return KeyState(
        kind="labels",
        current={} if present is None else {K: present},
        desired={} if wanted is None else {K: wanted},
        recorded=NOT_THERE if recorded is NOT_THERE else {K: recorded},
        **more,
    )


# current, desired, recorded, circumstances -> changes, recorded afterwards, keeps a different value
CASES = {
    "absent and new: set": (None, "v", NOT_THERE, {}, {K: "v"}, {K: "v"}, False),
    "removed by another writer: restored": (None, "v", "v", {}, {K: "v"}, {K: "v"}, False),
    "theirs until they removed it: ours": (None, "v", None, {}, {K: "v"}, {K: "v"}, False),
    "as it should be": ("v", "v", "v", {}, {}, {K: "v"}, False),
    "the rule has changed": ("v", "w", "v", {}, {K: "w"}, {K: "w"}, False),
    "the value is empty": ("", "w", "", {}, {K: "w"}, {K: "w"}, False),
    "changed by another writer": ("x", "v", "v", {}, {}, {K: None}, True),
    "changed by another writer to the desired value": ("w", "w", "v", {}, {}, {K: None}, False),
    "theirs for long": ("x", "v", None, {}, {}, {K: None}, True),
    "theirs, though it says what we want": ("v", "v", None, {}, {}, {K: None}, False),
    "never ours, another value": ("x", "v", NOT_THERE, {}, {}, {K: None}, True),
    "never ours, the same value": ("v", "v", NOT_THERE, {}, {}, {}, False),
    "no account kept, the same value: adopted": ("v", "v", NOT_THERE, EQUAL, {}, {K: "v"}, False),
    "no account kept, another value": ("x", "v", NOT_THERE, EQUAL, {}, {K: None}, True),
    "a cloud controller's to say": ("x", "v", NOT_THERE, DIFFERENT, {K: "v"}, {K: "v"}, False),
    "not wanted any more": ("v", None, "v", {}, {K: None}, {}, False),
    "no longer desired, changed by another writer": ("x", None, "v", {}, {}, {}, False),
    "not wanted any more, theirs": ("v", None, None, {}, {}, {}, False),
    "not wanted any more, and gone": (None, None, "v", {}, {}, {}, False),
    "not judged this time": ("v", None, "v", RETAINED, {}, {K: "v"}, False),
    "not judged this time, other value of an earlier rule": ("v", "w", "v", RETAINED, {}, {K: "v"}, False),
    "not judged this time, removed": (None, "w", "v", RETAINED, {}, {K: None}, False),
    "not judged this time, removed, not desired": (None, None, "v", RETAINED, {}, {K: None}, False),
    "not judged this time, changed": ("x", None, "v", RETAINED, {}, {K: None}, True),
    "not judged this time, theirs": ("v", None, None, RETAINED, {}, {K: None}, False),
    "not judged this time, never set": (None, "w", NOT_THERE, RETAINED, {K: "w"}, {K: "w"}, False),
    "Talos sets it": ("x", "v", "v", TALOS, {}, {}, False),
    "Talos has taken it over and we want it no more": ("v", None, "v", TALOS, {}, {}, False),
    "taken off by who waited for it": (None, "v", "v", RELEASED, {}, {K: None}, False),
    "in use without it": (None, "v", NOT_THERE, RELEASED, {}, {K: None}, False),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_key_is_set_kept_or_left_by_whose_it_is(case: tuple[Any, ...]):
    present, wanted, recorded, more, changes, afterwards, theirs = case
    found = resolve_ownership(keys(present, wanted, recorded, more))
    assert (found.changes, found.recorded) == (changes, afterwards)
    assert bool(found.kept) is theirs


def test_what_the_machine_config_sets_to_something_else_is_named():
    assert resolve_ownership(keys("x", "v", NOT_THERE, TALOS)).machine_config_keys == (K,)
    assert resolve_ownership(keys("v", "v", NOT_THERE, TALOS)).machine_config_keys == ()


RESTRICTED = ["node-restriction.kubernetes.io/tier", "example.node-restriction.kubernetes.io/tier"]


@pytest.mark.parametrize("key", RESTRICTED)
@pytest.mark.parametrize(
    ("present", "wanted", "recorded", "afterwards"),
    [
        (None, "gold", None, "gold"),
        ("gold", "none", "gold", "none"),
        ("gold", None, "gold", None),
    ],
    ids=["set", "changed", "removed"],
)
def test_a_kubelet_has_no_veto_on_a_restricted_label(
    key: str, present: str | None, wanted: str | None, recorded: str | None, afterwards: str | None
):
    found = resolve_ownership(
        KeyState(
            kind="labels",
            current={} if present is None else {key: present},
            desired={} if wanted is None else {key: wanted},
            recorded={} if recorded is None else {key: recorded},
            machine_config_keys=frozenset({key}),
        )
    )
    assert found.changes == {key: afterwards}
    assert found.machine_config_keys == ()


@pytest.mark.parametrize(
    "key", ["notnode-restriction.kubernetes.io/tier", "node-restriction.kubernetes.io", K]
)
def test_a_key_that_a_kubelet_may_write_anyway_is_left_to_the_machine_config(key: str):
    found = resolve_ownership(
        KeyState(kind="labels", current={}, desired={key: "v"}, machine_config_keys=frozenset({key}))
    )
    assert (found.changes, found.machine_config_keys) == ({}, (key,))


def taint_keys(present: dict[str, str], **more: Any) -> KeyState:
    wanted = {"example.com/apart:NoExecute": "yes"}
    return KeyState(
        kind="taints",
        current=present,
        desired=wanted,
        machine_config_keys=frozenset({"example.com/apart"}),
        **more,
    )


def test_a_kubelet_has_no_veto_on_a_taint_that_its_node_lacks():
    found = resolve_ownership(taint_keys({}))
    assert (found.changes, found.machine_config_keys) == ({"example.com/apart:NoExecute": "yes"}, ())


def test_a_taint_of_the_machine_config_stays_as_it_is():
    found = resolve_ownership(taint_keys({"example.com/apart:NoExecute": "talos"}))
    assert (found.changes, found.machine_config_keys) == ({}, ("example.com/apart:NoExecute",))
    assert (
        resolve_ownership(taint_keys({}, released=frozenset({"example.com/apart:NoExecute"}))).changes == {}
    )


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("labels", "kubernetes.io/hostname"),
        ("labels", "extensions.talos.dev/x"),
        ("annotations", "alpha.kubernetes.io/provided-node-ip"),
        ("annotations", "talos.dev/owned-labels"),
        ("taints", "node.kubernetes.io/unreachable:NoExecute"),
        ("taints", "node.cloudprovider.kubernetes.io/uninitialized:NoSchedule"),
    ],
)
def test_a_record_that_names_what_is_not_for_us_to_set_removes_nothing(kind: Any, key: str):
    found = resolve_ownership(KeyState(kind=kind, current={key: "v"}, desired={}, recorded={key: "v"}))
    assert (found.changes, found.recorded) == ({}, {})


@pytest.mark.parametrize("value", ["", "v", "x" * 63, "x" * 64, "sha256:abc", "ä" * 400, "\ud800"])
def test_a_mark_tells_values_apart_and_is_short(value: str):
    assert fingerprint_value(value) == fingerprint_value(value)
    assert fingerprint_value(value) != fingerprint_value(value + "x")
    assert fingerprint_value(fingerprint_value(value)) != fingerprint_value(value) or len(value) < 64
    assert len(fingerprint_value(value)) <= 63


# ---- properties

NAMES = st.sampled_from(
    ["a", "example.com/b", "c", "kubernetes.io/hostname", "x.node-restriction.kubernetes.io/d"]
)
VALUES = st.sampled_from(["", "v", "w", "x", "y" * 70])
SETS = st.frozensets(NAMES, max_size=3)
ALL_KEYS = st.builds(
    KeyState,
    kind=st.just("labels"),
    current=st.dictionaries(NAMES, VALUES),
    desired=st.dictionaries(NAMES.filter(lambda name: "hostname" not in name), VALUES),
    recorded=st.dictionaries(NAMES, st.none() | VALUES.map(fingerprint_value)),
    machine_config_keys=SETS, retained=SETS, adopted_if_equal=SETS, adopted_if_different=SETS, released=SETS,
)  # fmt: skip


def after(given_keys: KeyState) -> KeyState:
    found = resolve_ownership(given_keys)
    present = {k: v for k, v in {**given_keys.current, **found.changes}.items() if v is not None}
    # By then there is a record: what it does not name was decided, too.
    return msgspec.structs.replace(
        given_keys,
        current=present,
        recorded=found.recorded,
        adopted_if_equal=frozenset(),
        adopted_if_different=frozenset(),
        released=given_keys.released & found.recorded.keys(),
    )


@given(ALL_KEYS)
def test_deciding_again_changes_nothing_whatever_the_record_said(given_keys: KeyState):
    settled = after(given_keys)
    again = resolve_ownership(settled)
    assert (again.changes, again.recorded) == ({}, settled.recorded)


@given(ALL_KEYS)
def test_what_the_record_does_not_name_with_its_value_stays_byte_identical(given_keys: KeyState):
    settled = after(given_keys)
    for key, value in given_keys.current.items():
        is_ours = (
            given_keys.recorded.get(key, None) == fingerprint_value(value)
            or key in given_keys.adopted_if_different
        )
        if not is_ours:
            assert settled.current[key] == value


@given(ALL_KEYS)
def test_the_record_names_a_value_only_if_the_node_has_it(given_keys: KeyState):
    settled = after(given_keys)
    named = {key: fingerprint for key, fingerprint in settled.recorded.items() if fingerprint is not None}
    assert named == {
        key: fingerprint_value(settled.current[key]) for key in named.keys() & settled.current.keys()
    }


def test_keys_are_removed_in_the_order_of_the_record():
    names = [f"example.com/{number}" for number in range(20)]
    recorded = dict.fromkeys(names, "v")
    found = resolve_ownership(KeyState(kind="labels", current=recorded, desired={}, recorded=recorded))
    assert list(found.changes) == names
