"""What kubectl asks for before and while it shows nodes, on a real and a simulated API server."""

import ipaddress
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from libs.testbed.kubelet_node import SimKubelet
from libs.testbed.kubelets import MERGE, KubeletFleet
from libs.testbed.signing_requests import CSRS
from libs.testbed.sim_apiserver.discovery import build_documents
from libs.testbed.sim_apiserver.kinds import KINDS
from tests.contract.conftest import ApiServer

# The headers of kubectl 1.36.
DISCOVERY = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
)
TABLE = (
    "application/json;as=Table;v=v1;g=meta.k8s.io,"
    "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)
RESOURCE_LISTS = [
    path for path, said in build_documents(KINDS).items() if said.get("kind") == "APIResourceList"
]


class Kubectl:
    """Requests as kubectl makes them."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._server = server

    async def get(self, path: str, accept: str = "application/json") -> Any:
        async with self._session.get(f"{self._server}{path}", headers={"Accept": accept}) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def first_line(self, path: str, accept: str) -> Any:
        async with self._session.get(f"{self._server}{path}", headers={"Accept": accept}) as answer:
            return msgspec.json.decode(await answer.content.readline())


@pytest.fixture
async def kubectl(api_server: ApiServer) -> AsyncIterator[Kubectl]:
    connector = aiohttp.TCPConnector(ssl=api_server.ssl_context())
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Kubectl(session, api_server.server)


@pytest.fixture
async def node(admin: KubeletFleet) -> AsyncIterator[str]:
    await admin.join(SimKubelet(name="shown"))
    labels = {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/edge": ""}
    body = {"metadata": {"labels": labels}, "spec": {"unschedulable": True}}
    await admin.send("PATCH", "/api/v1/nodes/shown", body=body, content_type=MERGE)
    yield "shown"
    await admin.delete_node("shown")


def rows(table: Any) -> dict[str, list[str]]:
    """Name -> cells without the age, which passes, and without those of `kubectl -o wide`."""
    columns = table["columnDefinitions"]
    shown = [at for at, each in enumerate(columns) if each["name"] != "Age" and not each["priority"]]
    return {row["cells"][0]: [row["cells"][at] for at in shown] for row in table["rows"]}


async def test_the_server_says_what_it_is(kubectl: Kubectl):
    version = await kubectl.get("/version?timeout=32s")
    assert (version["major"], version["gitVersion"].startswith("v1.")) == ("1", True)


async def test_the_core_and_every_group_that_is_simulated_are_discovered(kubectl: Kubectl):
    core = await kubectl.get("/api?timeout=32s")
    assert (core["kind"], core["versions"]) == ("APIVersions", ["v1"])
    listed = await kubectl.get("/apis?timeout=32s")
    groups = {group["name"]: group["preferredVersion"] for group in listed["groups"]}
    for name, kind in {kind.group: kind for kind in KINDS if kind.group}.items():
        assert groups[name] == {"groupVersion": kind.api_version, "version": kind.version}
        alone = await kubectl.get(f"/apis/{name}")
        assert (alone["kind"], alone["preferredVersion"]) == ("APIGroup", groups[name])


@pytest.mark.parametrize("path", RESOURCE_LISTS)
async def test_a_simulated_resource_is_described_as_the_real_one_is(kubectl: Kubectl, path: str):
    expected = {resource["name"]: resource for resource in build_documents(KINDS)[path]["resources"]}
    told = await kubectl.get(f"{path}?timeout=32s")
    assert (told["kind"], told["groupVersion"]) == (
        "APIResourceList",
        build_documents(KINDS)[path]["groupVersion"],
    )
    found = {resource["name"]: resource for resource in told["resources"]}
    for name, resource in expected.items():
        said = found[name]
        assert set(resource["verbs"]) <= set(said["verbs"]), name
        told_alike = ("singularName", "namespaced", "kind", "shortNames")
        assert {key: said.get(key) for key in told_alike} == {key: resource.get(key) for key in told_alike}


@pytest.mark.parametrize("path", ["/api", "/apis", *RESOURCE_LISTS])
async def test_whoever_is_known_may_discover(admin: KubeletFleet, path: str):
    assert (await admin.request("GET", path, as_node="curious")).status == 200


async def test_who_accepts_aggregated_discovery_finds_nodes_too(kubectl: Kubectl):
    told = await kubectl.get("/api?timeout=32s", DISCOVERY)
    if told["kind"] == "APIVersions":  # kubectl falls back to asking version by version
        listed = await kubectl.get(f"/api/{told['versions'][0]}?timeout=32s")
        assert "nodes" in {resource["name"] for resource in listed["resources"]}
    else:
        [core] = told["items"]
        assert "nodes" in {resource["resource"] for resource in core["versions"][0]["resources"]}


async def test_a_node_has_the_same_row_in_lists_and_alone(kubectl: Kubectl, node: str):
    expected = ["shown", "Ready,SchedulingDisabled", "edge,worker", "v1.36.3"]
    for path in ("/api/v1/nodes?limit=500", f"/api/v1/nodes/{node}"):
        table = await kubectl.get(path, TABLE)
        assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
        assert rows(table)[node] == expected
        [about] = [row["object"] for row in table["rows"] if row["cells"][0] == node]
        assert (about["kind"], about["metadata"]["name"]) == ("PartialObjectMetadata", node)
        columns = table["columnDefinitions"]
        shown = [column["name"] for column in columns if not column["priority"]]
        assert shown == ["Name", "Status", "Roles", "Age", "Version"]
        assert {(c["type"], c["format"]) for c in columns} == {("string", "name"), ("string", "")}


async def test_a_node_that_has_said_nothing_yet_has_a_row_too(kubectl: Kubectl, admin: KubeletFleet):
    await admin.request("POST", "/api/v1/nodes", body={"metadata": {"name": "silent"}})
    table = await kubectl.get("/api/v1/nodes/silent", TABLE)
    assert rows(table) == {"silent": ["silent", "Unknown", "<none>", ""]}
    await admin.delete_node("silent")


async def test_requests_for_certificates_are_shown_with_who_asks_and_what_became_of_them(
    kubectl: Kubectl, admin: KubeletFleet
):
    kubelet = SimKubelet(name="asks-for-tables")
    names = [
        await admin.request_certificate(kubelet, expiration_seconds=seconds)
        for seconds in (None, 3600, 30 * 86400, 5 * 86400, 20000)
    ]
    await admin.approve(names[1])
    table = await kubectl.get(CSRS, TABLE)
    assert [column["name"] for column in table["columnDefinitions"]] == [
        *("Name", "Age", "SignerName", "Requestor", "RequestedDuration", "Condition")
    ]
    told = {row["cells"][0]: row["cells"][2:] for row in table["rows"]}
    told[names[1]][-1] = told[names[1]][-1].removesuffix(",Issued")  # by whom runs beside the API server
    who = ["kubernetes.io/kubelet-serving", "system:node:asks-for-tables"]
    assert [told[name] for name in names] == [
        [*who, "<none>", "Pending"],
        [*who, "60m", "Approved"],
        [*who, "30d", "Pending"],
        [*who, "5d", "Pending"],
        [*who, "5h33m", "Pending"],
    ]
    for name in names:
        await admin.request("DELETE", f"{CSRS}/{name}")


SERVICES = "/api/v1/namespaces/default/services"


async def test_services_are_shown_with_their_type_addresses_and_ports(kubectl: Kubectl, admin: KubeletFleet):
    port = {"name": "http", "port": 80, "nodePort": 30090}
    specs = {
        "balanced": {"type": "LoadBalancer", "ports": [port], "externalIPs": ["198.51.100.7"]},
        "headless": {"clusterIP": "None", "ports": [{"port": 53, "protocol": "UDP"}]},
        "named": {"type": "ExternalName", "externalName": "shop.example.com"},
        "pending": {"type": "LoadBalancer", "ports": [port | {"nodePort": 30091}]},
        "plain": {"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 443}]},
    }
    for name, spec in specs.items():
        await admin.send("POST", SERVICES, body={"metadata": {"name": name}, "spec": spec})
    ingress = [{"ip": "203.0.113.9"}, {"ip": "203.0.113.10"}, {"hostname": "lb.example.com"}]
    status = {"status": {"loadBalancer": {"ingress": ingress}}}
    await admin.send("PATCH", f"{SERVICES}/balanced/status", body=status, content_type=MERGE)
    table = await kubectl.get(SERVICES, TABLE)
    found = rows(table)
    for name in specs:
        await admin.send("DELETE", f"{SERVICES}/{name}")
    columns = [column["name"] for column in table["columnDefinitions"] if not column["priority"]]
    assert columns == ["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age"]
    for name in ("balanced", "pending", "plain"):
        ipaddress.ip_address(found[name].pop(2))
    addresses = "203.0.113.10,203.0.113.9,lb.example.com,198.51.100.7"
    assert [found[name] for name in specs] == [
        ["balanced", "LoadBalancer", addresses, "80:30090/TCP"],
        ["headless", "ClusterIP", "None", "<none>", "53/UDP"],
        ["named", "ExternalName", "<none>", "shop.example.com", "<none>"],
        ["pending", "LoadBalancer", "<pending>", "80:30091/TCP"],
        ["plain", "ClusterIP", "<none>", "80/TCP,443/TCP"],
    ]


async def test_a_watch_that_asks_for_tables_tells_each_change_as_one(kubectl: Kubectl, node: str):
    listed = await kubectl.get(f"/api/v1/nodes?fieldSelector=metadata.name%3D{node}", TABLE)
    told = await kubectl.first_line(f"/api/v1/nodes?watch=true&fieldSelector=metadata.name%3D{node}", TABLE)
    assert told["type"] == "ADDED"
    assert rows(told["object"]) == rows(listed)


async def test_whoever_asks_for_json_gets_no_table(kubectl: Kubectl, node: str):
    listed = await kubectl.get("/api/v1/nodes?limit=500", f"application/json,{TABLE}")
    assert listed["kind"] == "NodeList"
