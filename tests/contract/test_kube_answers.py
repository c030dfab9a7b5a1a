"""Status, reason and refused fields of many requests, on a real and a simulated API server."""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from libs.testbed.kubelets import JSON, JSON_PATCH, MERGE, STRATEGIC, KubeletFleet

NODES = "/api/v1/nodes"
NODE = f"{NODES}/asked"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.fixture
async def node(admin: KubeletFleet) -> AsyncIterator[Any]:
    """The Node that the requests below are about."""
    body = {"metadata": {"name": "asked", "labels": {"here": "before"}}, "spec": {"providerID": "a://b"}}
    created = await admin.request("POST", NODES, body=body)
    assert created.status == 201, created
    yield created.body
    await admin.delete_node("asked")


def refused_fields(body: Any) -> set[tuple[str, str]]:
    return {(c.get("field", ""), c["reason"]) for c in (body.get("details") or {}).get("causes", ())}


INVALID, FORBIDDEN = "FieldValueInvalid", "FieldValueForbidden"


class Row(NamedTuple):
    """A request, and what it is answered with."""

    method: str
    path: str
    body: Any
    content_type: str
    status: int
    reason: str
    fields: frozenset[tuple[str, str]] | set[tuple[str, str]] = frozenset()


@pytest.mark.parametrize(
    "row",
    [
        Row("GET", f"{NODES}/absent", None, JSON, 404, "NotFound"),
        Row("GET", "/api/v1/nowhere", None, JSON, 404, "NotFound"),
        Row("GET", f"{NODE}/nowhere", None, JSON, 404, "NotFound"),
        Row("GET", f"{LEASES}/absent", None, JSON, 404, "NotFound"),
        Row("DELETE", f"{NODES}/absent", None, JSON, 404, "NotFound"),
        Row("POST", NODE, {}, JSON, 405, "MethodNotAllowed"),
        Row("PUT", NODES, {}, JSON, 405, "MethodNotAllowed"),
        Row("POST", NODES, {"metadata": {"name": "asked"}}, JSON, 409, "AlreadyExists"),
        Row("POST", NODES, {"metadata": {}}, JSON, 422, "Invalid", {("metadata.name", "FieldValueRequired")}),
        Row("POST", NODES, {"kind": "Pod", "metadata": {"name": "x"}}, JSON, 400, "BadRequest"),
        Row("POST", NODES, [], JSON, 400, "BadRequest"),
        Row("PATCH", NODE, {}, JSON, 415, "UnsupportedMediaType"),
        Row("PATCH", NODE, {"op": "add"}, JSON_PATCH, 400, "BadRequest"),
        Row("PATCH", NODE, [1], STRATEGIC, 400, "BadRequest"),
        Row("PATCH", NODE, {"metadata": {"name": "other"}}, MERGE, 400, "BadRequest"),
        Row("PATCH", NODE, {"metadata": {"resourceVersion": "1"}}, MERGE, 409, "Conflict"),
        Row("PATCH", NODE, {"metadata": {"uid": "x"}}, MERGE, 422, "Invalid", {("metadata.uid", INVALID)}),
        Row(
            "PATCH",
            NODE,
            {"spec": {"providerID": None}},
            MERGE,
            422,
            "Invalid",
            {("spec.providerID", FORBIDDEN)},
        ),
        Row(
            "PUT",
            NODE,
            {"metadata": {"name": "asked"}},
            JSON,
            422,
            "Invalid",
            {("spec.providerID", FORBIDDEN)},
        ),
        Row("PUT", NODE, {"metadata": {"name": "asked", "uid": "x"}}, JSON, 409, "Conflict"),
        Row("PUT", NODE, {"metadata": {"name": "other"}}, JSON, 400, "BadRequest"),
        Row("GET", REVIEWS, None, JSON, 405, "MethodNotAllowed"),
        Row("GET", f"{NODES}?fieldSelector=spec.nope%3Dx", None, JSON, 400, "BadRequest"),
    ],
    ids=lambda row: f"{row.method} {row.path} {row.reason} {sorted(row.fields) or ''}",
)
async def test_a_refusal_says_why_in_the_same_words(admin: KubeletFleet, node: Any, row: Row):
    answer = await admin.request(row.method, row.path, body=row.body, content_type=row.content_type)
    assert (answer.status, answer.body["reason"]) == (row.status, row.reason), answer
    assert refused_fields(answer.body) == row.fields
    assert (answer.body["kind"], answer.body["status"]) == ("Status", "Failure")


async def test_a_new_node_carries_the_defaults_and_nothing_that_is_empty(admin: KubeletFleet):
    body = {
        "metadata": {"name": "defaulted"},
        "spec": {"podCIDR": "10.1.0.0/24", "taints": []},
        "status": {"addresses": [], "capacity": {"cpu": "4"}},
    }
    created = (await admin.request("POST", NODES, body=body)).body
    assert created["spec"] == {
        "podCIDR": "10.1.0.0/24",
        "podCIDRs": ["10.1.0.0/24"],
        "taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}],
    }
    assert set(created["status"]) == {"capacity", "allocatable", "daemonEndpoints", "nodeInfo"}
    assert set(created["metadata"]) - {"managedFields"} == {
        "name",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    }
    await admin.delete_node("defaulted")


async def test_conditions_of_a_status_patch_are_merged_by_their_type(admin: KubeletFleet, node: Any):
    found = []
    for patch in (
        [{"type": "A"}, {"type": "B"}, {"type": "C"}],
        [{"type": "C", "status": "True"}, {"type": "D"}, {"type": "A"}],
        [{"type": "Z"}],
        [{"type": "B", "$patch": "delete"}, {"type": "Y"}],
    ):
        after = await admin.request(
            "PATCH", f"{NODE}/status", body={"status": {"conditions": patch}}, content_type=STRATEGIC
        )
        found.append("".join(sorted(c["type"] for c in after.body["status"]["conditions"])))
    assert found == ["ABC", "ABCD", "ABCDZ", "ACDYZ"]
    nameless = {"status": {"conditions": [{"status": "True"}]}}
    refused = await admin.request("PATCH", f"{NODE}/status", body=nameless, content_type=STRATEGIC)
    assert refused.status == 500


async def test_the_node_and_its_status_are_written_on_paths_of_their_own(admin: KubeletFleet, node: Any):
    body = {
        "metadata": {"labels": {"x": "y"}},
        "spec": {"unschedulable": True},
        "status": {"phase": "Running"},
    }
    by_status = await admin.request("PATCH", f"{NODE}/status", body=body, content_type=STRATEGIC)
    assert "unschedulable" not in by_status.body["spec"]
    assert (by_status.body["metadata"]["labels"]["x"], by_status.body["status"]["phase"]) == ("y", "Running")
    body["status"] = {"phase": "Pending"}
    by_spec = await admin.request("PATCH", NODE, body=body, content_type=STRATEGIC)
    assert (by_spec.body["spec"]["unschedulable"], by_spec.body["status"]["phase"]) == (True, "Running")


@pytest.mark.parametrize(
    ("attributes", "as_admin", "as_node"),
    [
        ({"verb": "patch", "resource": "nodes", "subresource": "status"}, True, True),
        ({"verb": "delete", "resource": "nodes"}, True, False),
        ({"verb": "get", "resource": "nodes", "name": "other-1"}, True, False),
        ({"verb": "get", "resource": "secrets", "namespace": "kube-system"}, True, False),
    ],
)
async def test_everybody_may_ask_what_they_may_do(
    admin: KubeletFleet, attributes: dict[str, str], as_admin: bool, as_node: bool
):
    for as_whom, expected in ((None, as_admin), ("asking", as_node)):
        answer = await admin.request(
            "POST", REVIEWS, as_node=as_whom, body={"spec": {"resourceAttributes": attributes}}
        )
        assert (answer.status, answer.body["status"]["allowed"]) == (201, expected), answer
