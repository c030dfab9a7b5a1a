"""The store of the simulated API server: changes lead to the present state, pages are consistent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.testbed.sim_apiserver.object_store import CompactedError, Key, ObjectStore, StoredObject

NAMES = st.sampled_from([Key("", "a"), Key("", "b"), Key("x", "a"), Key("x", "b"), Key("y", "a")])
WRITES = st.lists(st.tuples(st.booleans(), NAMES), max_size=40)  # put or delete


def everything(item: object) -> bool:
    return True


def written(writes: list[tuple[bool, Key]], **options: int) -> ObjectStore:
    store = ObjectStore(["things"], **options)
    for put, key in writes:
        raw = str(store.version + 1).encode()
        if put:
            store.put("things", key, None, raw)
        elif key in store.table("things").objects:
            store.delete("things", key, raw)
    return store


def replayed(state: dict[Key, bytes], store: ObjectStore, since: int) -> dict[Key, bytes]:
    for change in store.table("things").list_changes(since):
        assert (change.stored.key in state) == (change.type != "ADDED")
        state[change.stored.key] = change.stored.raw
        if change.type == "DELETED":
            del state[change.stored.key]
    return state


def present(store: ObjectStore) -> dict[Key, bytes]:
    return {key: stored.raw for key, stored in store.table("things").objects.items()}


@given(WRITES, WRITES)
def test_the_changes_since_any_version_lead_to_the_present_state(
    before: list[tuple[bool, Key]], after: list[tuple[bool, Key]]
):
    then = written(before)
    now = written([*before, *after])
    assert replayed(present(then), now, then.version) == present(now)
    versions = [change.stored.version for change in now.table("things").list_changes(1)]
    assert versions == sorted(set(versions))


@given(WRITES, WRITES, st.integers(1, 3), st.sampled_from(["", "x"]))
def test_pages_show_each_object_once_at_the_version_of_the_first_page(
    before: list[tuple[bool, Key]], after: list[tuple[bool, Key]], limit: int, namespace: str
):
    store = written(before)
    wanted = store.table("things").list_namespace(namespace)
    page = store.page("things", namespace, limit, everything)
    found: list[StoredObject] = list(page.items)
    for put, key in after:
        if put:
            store.put("things", key, None, b"later")
    while page.remaining:
        page = store.next_page(
            "things", namespace, limit, everything, version=page.version, after=page.items[-1].key
        )
        found += page.items
    assert found == list(wanted)
    assert [stored.key for stored in found] == sorted(stored.key for stored in found)


@given(WRITES, st.integers(2, 10))
def test_a_short_history_returns_all_changes_or_an_error(writes: list[tuple[bool, Key]], limit: int):
    store = written(writes, history_limit=limit)
    whole = written(writes)
    for since in range(1, store.version + 1):
        try:
            told = store.table("things").list_changes(since)
        except CompactedError:
            assert since < store.table("things").compacted
        else:
            assert told == whole.table("things").list_changes(since)


def test_after_a_compaction_only_the_present_state_is_available():
    store = written([(True, Key("", "a")), (True, Key("", "b")), (True, Key("", "c"))])
    page = store.page("things", "", 1, everything)
    store.compact()
    with pytest.raises(CompactedError):
        store.table("things").list_changes(store.version - 1)
    with pytest.raises(CompactedError):
        store.next_page("things", "", 1, everything, version=page.version, after=page.items[-1].key)
    assert store.table("things").list_changes(store.version) == []
