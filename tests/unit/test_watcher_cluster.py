"""The picture of the cluster: lists replace it, changes keep it up, and each names whom it concerns."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from libs.common.node import NodeCondition
from services.watcher.cluster import Cluster
from tests.builders import a_node


def a_cluster(*nodes, version: str = "100") -> Cluster:
    cluster = Cluster()
    cluster.replace(nodes, (), version)
    return cluster


def test_before_a_list_nobody_is_missing():
    assert not Cluster().listed
    assert a_cluster().listed


def test_a_list_names_who_came_who_changed_and_who_went_and_nobody_else():
    cluster = a_cluster(a_node("stays"), a_node("changes"), a_node("goes"))
    news = cluster.replace(
        (a_node("stays"), a_node("changes", labels={"a": "b"}), a_node("comes")), (), "200"
    )
    assert news == {"changes", "goes", "comes"}
    assert set(cluster.names()) == {"stays", "changes", "comes"}
    assert cluster.seen_version == 200


def test_only_what_we_read_is_news():
    cluster = a_cluster(a_node(resource_version="100"))
    foreign = NodeCondition(type="DiskPressure", status="True")
    assert not cluster.put(a_node(resource_version="101", conditions=(foreign,)))
    assert cluster.put(a_node(resource_version="102", labels={"a": "b"}))
    assert cluster.put(a_node("other", resource_version="103"))
    assert cluster.seen_version == 103
    node = cluster.node("web-1")
    assert node is not None
    assert node.metadata.resource_version == "102"


def test_a_deletion_and_a_bookmark_move_the_time_as_of_which_somebody_is_missing():
    cluster = a_cluster(a_node("a"), a_node("b"))
    cluster.remove("a", "150")
    assert (cluster.node("a"), cluster.seen_version) == (None, 150)
    cluster.saw("160")
    cluster.saw("140")
    assert cluster.seen_version == 160


def test_a_list_of_an_earlier_version_turns_the_time_back():
    cluster = a_cluster(version="500")
    cluster.replace((), (), "200")
    assert cluster.seen_version == 200


def test_an_unreadable_node_is_neither_there_nor_missing_until_it_can_be_read_or_is_not_listed():
    cluster = a_cluster(a_node("a"))
    cluster.cannot_read("a")
    assert cluster.node("a") is None
    assert cluster.is_unreadable("a")
    assert cluster.put(a_node("a"))
    assert not cluster.is_unreadable("a")
    cluster.replace((), ("a",), "200")
    assert cluster.is_unreadable("a")
    cluster.replace((), (), "300")
    assert not cluster.is_unreadable("a")


def test_turns_belong_to_uids():
    cluster = a_cluster(a_node("a", uid="u1"), a_node("b", uid="u2"))
    assert cluster.names_by_uid() == {"u1": "a", "u2": "b"}
    assert len(cluster) == 2


names = st.sampled_from(["a", "b", "c"])
happenings = st.lists(
    st.tuples(st.sampled_from(["put", "remove"]), names, st.sampled_from(["x", "y"])), max_size=20
)


@given(happenings, happenings)
def test_a_list_leads_to_the_same_picture_as_the_changes_that_it_stands_for(first, then):
    watched, truth = a_cluster(), {}
    for version, (kind, name, label) in enumerate([*first, *then], start=101):
        node = a_node(name, labels={"l": label}, resource_version=str(version))
        if kind == "put":
            watched.put(node)
            truth[name] = node
        elif truth.pop(name, None) is not None:
            watched.remove(name, str(version))
    listed = a_cluster()
    for version, (kind, name, label) in enumerate(first, start=101):
        if kind == "put":
            listed.put(a_node(name, labels={"l": label}, resource_version=str(version)))
        else:
            listed.remove(name, str(version))
    before = {name: listed.node(name) for name in listed.names()}
    news = listed.replace(truth.values(), (), "999")
    assert {n: listed.node(n) for n in listed.names()} == {n: watched.node(n) for n in watched.names()}
    different = {n for n in before.keys() | truth.keys() if before.get(n) != listed.node(n)}
    assert news == different


def test_the_picture_does_not_share_what_callers_may_change():
    node = a_node(annotations={"big": "x" * 2000})
    cluster = a_cluster(node)
    read = cluster.node(node.name)
    assert read is not None
    assert "big" not in read.annotations
    assert "big" in msgspec.structs.asdict(node)["metadata"].annotations
