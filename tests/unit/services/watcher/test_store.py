"""What is known of the cluster: lists replace it, changes keep it up, and each names whom it concerns."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.node import Node, NodeCondition, NodeSpec
from services.watcher.core.kinds import NODE
from services.watcher.core.store import Store
from tests.builders import make_node


def a_store(*nodes, version: str = "100") -> Store[Node]:
    store = Store(NODE)
    store.replace(nodes, (), version)
    return store


def test_before_a_list_nobody_is_missing():
    assert not Store(NODE).has_synced
    assert a_store().has_synced


def test_a_list_names_who_came_who_changed_and_who_went_and_nobody_else():
    store = a_store(make_node("stays"), make_node("changes"), make_node("goes"))
    news = store.replace(
        (make_node("stays"), make_node("changes", labels={"a": "b"}), make_node("comes")), (), "200"
    )
    assert news == {"changes", "goes", "comes"}
    assert set(store.names()) == {"stays", "changes", "comes"}
    assert store.last_resource_version == 200


def test_only_what_we_read_is_news():
    store = a_store(make_node(resource_version="100"))
    foreign = NodeCondition(type="DiskPressure", status="True")
    assert store.put(make_node(resource_version="101", conditions=(foreign,))) == set()
    assert store.put(make_node(resource_version="102", labels={"a": "b"})) == {"web-1"}
    assert store.put(make_node("other", resource_version="103")) == {"other"}
    assert store.last_resource_version == 103
    node = store.get("web-1")
    assert node is not None
    assert node.metadata.resource_version == "102"


def test_a_deletion_and_a_bookmark_move_the_time_as_of_which_somebody_is_missing():
    store = a_store(make_node("a"), make_node("b"))
    store.remove("a", "150")
    assert (store.get("a"), store.last_resource_version) == (None, 150)
    store.advance_version("160")
    store.advance_version("140")
    assert store.last_resource_version == 160


def test_a_list_of_an_earlier_version_turns_the_time_back():
    store = a_store(version="500")
    store.replace((), (), "200")
    assert store.last_resource_version == 200


def test_an_unreadable_node_is_neither_there_nor_missing_until_it_can_be_read_or_is_not_listed():
    store = a_store(make_node("a"))
    store.mark_unreadable("a")
    assert store.get("a") is None
    assert store.is_unreadable("a")
    assert store.put(make_node("a"))
    assert not store.is_unreadable("a")
    store.replace((), ("a",), "200")
    assert store.is_unreadable("a")
    store.replace((), (), "300")
    assert not store.is_unreadable("a")


names = st.sampled_from(["a", "b", "c"])
happenings = st.lists(
    st.tuples(st.sampled_from(["put", "remove"]), names, st.sampled_from(["x", "y"])), max_size=20
)


@given(happenings, happenings)
def test_a_list_leads_to_the_same_picture_as_the_changes_that_it_stands_for(first, then):
    watched, truth = a_store(), {}
    for version, (kind, name, label) in enumerate([*first, *then], start=101):
        node = make_node(name, labels={"l": label}, resource_version=str(version))
        if kind == "put":
            watched.put(node)
            truth[name] = node
        elif truth.pop(name, None) is not None:
            watched.remove(name, str(version))
    listed = a_store()
    for version, (kind, name, label) in enumerate(first, start=101):
        if kind == "put":
            listed.put(make_node(name, labels={"l": label}, resource_version=str(version)))
        else:
            listed.remove(name, str(version))
    before = {name: listed.get(name) for name in listed.names()}
    news = listed.replace(truth.values(), (), "999")
    assert {n: listed.get(n) for n in listed.names()} == {n: watched.get(n) for n in watched.names()}
    different = {n for n in before.keys() | truth.keys() if before.get(n) != listed.get(n)}
    assert news == different


def test_the_picture_does_not_share_what_callers_may_change():
    node = make_node(annotations={"big": "x" * 2000})
    store = a_store(node)
    read = store.get(node.name)
    assert read is not None
    assert "big" not in read.annotations
    assert "big" in msgspec.structs.asdict(node)["metadata"].annotations


def test_a_list_of_equal_objects_keeps_the_present_ones():
    store = a_store(make_node("web-1"), make_node("web-2"))
    before = {each.name: each for each in store}
    listed = [make_node("web-1"), make_node("web-2", labels={"zone": "b"})]
    assert store.replace(listed, (), "101") == {"web-2"}
    assert store.get("web-1") is before["web-1"]
    assert store.get("web-2") == listed[1]


def test_a_changed_object_keeps_the_present_spec_if_it_is_equal():
    store = a_store(make_node("web-1"))
    before = store.get("web-1")
    assert before is not None
    for changed in (
        make_node("web-1", labels={"zone": "b"}),
        msgspec.structs.replace(before, spec=NodeSpec(provider_id="talos://1")),
    ):
        store.put(changed)
        after = store.get("web-1")
        assert after == changed
        assert (after.spec is before.spec) == (after.spec == before.spec)
