"""The pure core of the simulated machines: resources, watch events and rejected requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.talos.protobuf import read_message
from libs.testbed.sim_machines.protobuf_wire import encode
from libs.testbed.sim_machines.requests import (
    CallRejected,
    ResourceSelection,
    StatusCode,
    WatchRequest,
    parse_watch,
)
from libs.testbed.sim_machines.resource_state import (
    EventType,
    State,
    list_opening_events,
    matches_watch,
    reconcile,
)
from libs.testbed.sim_machines.resources import SimResource

NODENAMES = ("k8s", "Nodenames.kubernetes.talos.dev")
ALL = WatchRequest(ResourceSelection("ns", "kind"), bootstrap_contents=True)

ids = st.sampled_from(["a", "b", "c", "d"])
resources = st.builds(
    SimResource, st.just("ns"), st.just("kind"), ids, st.just("owner"), st.binary(max_size=2)
)
contents = st.lists(resources, unique_by=lambda resource: resource.id)


@given(st.lists(contents, max_size=6))
def test_the_events_lead_to_the_resources_of_the_machine(history: list[list[SimResource]]):
    state: State = {}
    followed: dict[str, bytes] = {}
    for now, wanted in enumerate(history):
        state, events = reconcile(state, wanted, now)
        for event in events:
            assert matches_watch(event, ALL)
            if event.type is EventType.DESTROYED:
                del followed[event.id]
            else:
                assert (event.id in followed) is (event.type is EventType.UPDATED)
                followed[event.id] = event.resource
        assert {name: _spec(resource) for name, resource in followed.items()} == {
            resource.id: resource.spec for resource in wanted
        }
        assert [event.resource for event in list_opening_events(state, ALL, now)][:-1] == [
            followed[name] for name in sorted(followed)
        ]


@given(contents, contents)
def test_an_unchanged_resource_has_no_event_and_no_new_version(
    before: list[SimResource], after: list[SimResource]
):
    first, _ = reconcile({}, before, 1)
    second, events = reconcile(first, after, 2)
    assert {event.id for event in events} == {resource.id for resource in {*before} ^ {*after}}
    for key, held in second.items():
        if held.resource in before:
            assert held is first[key]
        else:
            assert held.version == (first[key].version + 1 if key in first else 1)
    assert reconcile(second, after, 3) == (second, [])


@pytest.mark.parametrize("field", [2, 3, 5, 6, 7])  # tail, labels, aggregated, bookmarks
def test_unsupported_options_of_a_watch_are_rejected_and_never_ignored(field: int):
    with pytest.raises(CallRejected) as refused:
        parse_watch(encode({1: "k8s", 2: NODENAMES[1], 4: {field: 1}, 5: 1}))
    assert refused.value.code is StatusCode.UNIMPLEMENTED


def _spec(resource: bytes) -> object:
    return read_message(read_message(resource)[2]).get(1, b"")
