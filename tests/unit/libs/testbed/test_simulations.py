"""Simulated machines: resources, watch events; what both simulations lack or forget is reported."""

from contextlib import suppress
from typing import cast

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Invalid
from libs.common.kube.load_kube_config import load_kube_config
from libs.talos.cosi_messages import decode_response
from libs.talos.proto.generated import EventType
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.sim_apiserver.api import SimApi
from libs.testbed.sim_apiserver.api_request import parse_request
from libs.testbed.sim_apiserver.object_store import HISTORY_LIMIT
from libs.testbed.sim_apiserver.resource_kind import Identity
from libs.testbed.sim_apiserver.server import SimApiServer
from libs.testbed.sim_apiserver.watch_stream import WatchStream
from libs.testbed.sim_machines.protobuf_wire import encode
from libs.testbed.sim_machines.requests import (
    CallRejected,
    ResourceSelection,
    StatusCode,
    WatchRequest,
    parse_watch,
)
from libs.testbed.sim_machines.resource_state import (
    State,
    list_opening_events,
    matches_watch,
    reconcile,
)
from libs.testbed.sim_machines.resources import SimResource

NODENAMES = ("k8s", "Nodenames.kubernetes.talos.dev")
ADMIN = Identity("admin", ("system:masters",))
ALL = WatchRequest(ResourceSelection("ns", "kind"), bootstrap_contents=True)

ids = st.sampled_from(["a", "b", "c", "d"])
resources = st.builds(
    SimResource, st.just("ns"), st.just("kind"), ids, st.just("owner"), st.binary(max_size=2)
)
contents = st.lists(resources, unique_by=lambda resource: resource.id)


@given(st.lists(contents, max_size=6))
def test_events_lead_to_the_resources_of_the_machine_and_an_unchanged_one_has_none(
    history: list[list[SimResource]],
):
    state: State = {}
    followed: dict[str, bytes] = {}
    before: list[SimResource] = []
    for now, wanted in enumerate(history):
        former, (state, events) = state, reconcile(state, wanted, now)
        assert {event.id for event in events} == {resource.id for resource in {*before} ^ {*wanted}}
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
        for key, held in state.items():
            if held.resource in before:
                assert held is former[key]
            else:
                assert held.version == (former[key].version + 1 if key in former else 1)
        before = wanted


@pytest.mark.parametrize("field", [2, 3, 5, 6, 7])  # tail, labels, aggregated, bookmarks
def test_unsupported_options_of_a_watch_are_rejected_and_never_ignored(field: int):
    with pytest.raises(CallRejected) as refused:
        parse_watch(encode({1: "k8s", 2: NODENAMES[1], 4: {field: 1}, 5: 1}))
    assert refused.value.code is StatusCode.UNIMPLEMENTED


def _spec(resource: bytes) -> bytes:
    return decode_response(encode({1: resource})).spec


async def test_a_long_history_of_the_api_server_loses_its_beginning(simulated: SimApiServer):
    async with KubeletFleet.start(simulated) as joining:
        await joining.join(SimKubelet(name="n1"))
        table = simulated.api.store.table("nodes")
        change = table.list_changes(0)[-1]
        for _ in range(HISTORY_LIMIT):
            table.append_change(change)
        watch = await joining.request("GET", "/api/v1/nodes?watch=1&resourceVersion=1")
    assert (watch.body["type"], watch.body["object"]["reason"]) == ("ERROR", "Expired")


class WritingResponse:
    """A response whose client creates a Node as it receives the first event, and leaves after the second."""

    def __init__(self, api: SimApi) -> None:
        self.lines: list[bytes] = []
        self._api = api

    async def write(self, data: bytes) -> None:
        self.lines.append(data)
        if len(self.lines) > 1:
            raise ConnectionResetError
        create_node(self._api, "second")


def create_node(api: SimApi, name: str) -> None:
    body = msgspec.json.encode({"metadata": {"name": name}})
    api.handle(ADMIN, parse_request("POST", "/api/v1/nodes", {}), body, "application/json")


async def test_a_watch_sends_what_changes_while_it_sends(simulated: SimApiServer):
    response = WritingResponse(simulated.api)
    asked = parse_request("GET", "/api/v1/nodes", {"watch": "1", "timeoutSeconds": "1"})
    watch = WatchStream(simulated.api, ADMIN, asked)
    create_node(simulated.api, "first")
    with suppress(ConnectionResetError):
        await watch.stream_events(cast("web.StreamResponse", response))
    names = [msgspec.json.decode(line)["object"]["metadata"]["name"] for line in response.lines]
    assert names == ["first", "second"]


async def test_what_the_api_server_does_not_simulate_is_rejected_and_is_no_fence(simulated: SimApiServer):
    api = KubeApi(load_kube_config(simulated.kubeconfig(), {}), user_agent="test", deadline_seconds=60.0)
    async with KubeletFleet.start(simulated) as joining:
        await joining.join(SimKubelet(name="odd"))
    with pytest.raises(Invalid, match="not simulated"):
        await api.patch_node("odd", [{"op": "copy", "from": "/metadata/labels", "path": "/metadata/a"}])
    await api.close()
