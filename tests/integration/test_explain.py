"""`talos-ccm explain`: Kubernetes, machines and NATS are read, nothing is written, services agree."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from libs.common.contract.node import UNINITIALIZED_TAINT
from libs.common.contract.services import DEFAULT_SERVICES, LEASE_NAMESPACE, LIFECYCLE, WATCHER_LEASE_NAME
from libs.common.kube.lease import acquired_document, vacant_lease
from libs.testbed.kubelets import SimKubelet
from libs.testbed.machine_fleet import SimMachineFacts, make_machine, make_member
from libs.testbed.nats_server import NatsServer
from libs.testbed.signing_requests import CSRS
from tests.bus_actors import wait_until
from tests.integration.operator_shell import Cluster, assert_refused
from tests.integration.service_cluster import MEMORY, ServiceCluster, run_services

ONE, TWO, THREE = (make_machine(f"asks-{number}", f"10.231.0.{number}") for number in (1, 2, 3))

HEAD = make_machine("asks-head", "10.231.255.1", control_plane=True)  # which reports the Service networks


_LIFECYCLE_SECONDS = 180  # lifecycle wants three looks, which may come a minute apart
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"
NOW_SUFFICES = "--lifecycle-not-ready-time=1s"


@pytest.fixture
async def requests(separate_cluster: ServiceCluster) -> Cluster:
    await separate_cluster.machines.put_machines(HEAD)
    return Cluster.of("csr", separate_cluster)


async def test_without_a_talosconfig_it_says_what_is_not_known_and_how_to_give_access(requests: Cluster):
    await requests.join(ONE)
    said = await requests.explain(await requests.asks(ONE), TALOSCONFIG="none")
    assert said.status == 2
    assert "unknown  machine     cannot access the Talos API: no talosconfig" in said.out
    assert "Give access to Talos with --talosconfig" in said.out
    assert "passed   signature" in said.out
    said = await requests.explain(
        "asks-1",
        "--node",
        "--without-talos",
        "--csr-allowed-networks=10.231.0.0/16",
        "--service-cluster-ip-range=10.96.0.0/12",
        TALOSCONFIG="none",
    )
    assert said.status == 0
    assert "attested by the Node object only" in said.out


async def test_what_is_explained_is_what_csr_then_does(tmp_path: Path, requests: Cluster):
    """Explains a good request, a stolen address, a strange name, a waiting and a superseded request."""
    machines = [make_machine(f"does-{number}", f"10.231.1.{number}") for number in range(1, 7)]
    await requests.join(*machines)
    names = [
        await requests.asks(machines[0]),
        await requests.asks(machines[1], ips=("10.231.1.2", "10.231.1.3")),
        await requests.asks(machines[2], dns=("does-3", "api.example.com")),
        await requests.asks(machines[3], ips=("10.231.1.4", "10.231.1.200")),
        await requests.asks(machines[4], ips=("10.231.1.201",)),
        await requests.asks(machines[4]),
    ]
    mark = requests.server.audit_mark()
    before = {name: await requests.explained(name) for name in names}
    assert {request.verb for request in requests.server.audit_counts(mark)} == {"list", "get"}
    said = [(told["state"], told["decision"]["now"]) for told in before.values()]
    assert said[:4] == [
        ("pending", "approve"), ("pending", "deny"), ("pending", "deny"), ("pending", "wait")
    ]  # fmt: skip
    assert said[4][0] == "superseded"
    assert said[5] == ("pending", "approve")
    async with run_services(
        tmp_path / "services", requests.server, requests.kubelets, requests.machines, **MEMORY
    ):
        conditions: dict[str, list[str]] = {}

        async def as_explained() -> bool:
            for name in names:
                found = await requests.kubelets.request("GET", f"{CSRS}/{name}")
                status = found.body.get("status", {})
                conditions[name] = [one["type"] for one in status.get("conditions", [])]
            expected = [["Approved"], ["Denied"], ["Denied"], [], [], ["Approved"]]
            return [conditions[name] for name in names] == expected

        await wait_until(as_explained, "csr decides as explained")
    after = await requests.explained(names[1])
    assert (after["state"], after["decision"]) == ("denied", before[names[1]]["decision"])
    assert after["conditions"][0]["message"] == before[names[1]]["decision"]["reason"]
    said_of_good = await requests.explain(names[0])
    assert said_of_good.status == 0
    assert "Approved by TalosCloudControllerManager" in said_of_good.out


async def test_what_does_not_exist_is_named(requests: Cluster):
    for command, words in (
        ("csr none", "CertificateSigningRequest none not found"),
        ("csr none --node", "no request for a serving certificate of node none"),
        ("node none", "Node none not found"),
    ):
        assert_refused(await requests.run("explain", *command.split()), words)


async def test_who_cannot_read_the_cluster_is_told_why(requests: Cluster):
    (requests.home / "rules.yaml").write_text("transformations: []")
    stranger = str(requests.server.kubeconfig("stranger"))
    for command in ("explain csr any", "explain node any", "render rules.yaml --all-nodes", "status ipam"):
        refused = await requests.run(*command.split(), KUBECONFIG="")
        assert_refused(refused, "cannot access the Kubernetes API: no API server is configured")
        assert_refused(await requests.run(*command.split(), KUBECONFIG=stranger), "forbidden")


@pytest.fixture
async def nodes(separate_cluster: ServiceCluster) -> Cluster:
    """With a watcher that leads for as long as the test runs, as far as its Lease says."""
    made = Cluster.of("node", separate_cluster)
    vacant = vacant_lease(LEASE_NAMESPACE, WATCHER_LEASE_NAME)
    lease = acquired_document(vacant, "watcher-1", 3600, datetime.now(UTC))
    assert (await made.kubelets.request("POST", LEASES, body=lease)).status == 201
    return made


async def initialized(nodes: Cluster, machine: SimMachineFacts) -> None:
    """As the labeler leaves it, as far as that matters here."""
    path = f"/api/v1/nodes/{machine.name}"
    found = (await nodes.kubelets.request("GET", path)).body
    taints = [taint for taint in found["spec"].get("taints", []) if taint["key"] != UNINITIALIZED_TAINT]
    body = {"spec": {"taints": taints, "providerID": f"talos://metal/{machine.reachable_at[0]}"}}
    answer = await nodes.kubelets.request(
        "PATCH", path, body=body, content_type="application/merge-patch+json"
    )
    assert answer.status == 200, answer.body


async def replace_first_of_three(nodes: Cluster) -> None:
    """Three initialized Nodes; the machine of the first is replaced by `newcomer`, which joins."""
    await nodes.join(ONE, TWO, THREE)
    for machine in (ONE, TWO, THREE):
        await initialized(nodes, machine)
    await nodes.kubelets.set_unreachable("asks-1", ago=timedelta(seconds=5))
    newcomer = make_machine("newcomer", "10.231.0.1")
    present = (TWO, THREE, newcomer)  # of which TWO lists the members
    members = tuple(map(make_member, present))
    await nodes.machines.delete_machines(ONE.id)
    await nodes.machines.put_machines(
        *(
            msgspec.structs.replace(machine, members=members, control_plane=machine.id == TWO.id)
            for machine in present
        )
    )
    await nodes.kubelets.join(SimKubelet.of_machine(newcomer))


async def test_what_is_explained_of_nodes_is_what_the_services_then_do_and_say(
    tmp_path: Path, nodes: Cluster, nats_server: NatsServer
):
    """A node that joins, and one whose machine is gone; lifecycle runs dry, with short terms."""
    await replace_first_of_three(nodes)
    mark = nodes.server.audit_mark()
    before = {name: await nodes.explained(name, NOW_SUFFICES) for name in ("newcomer", "asks-1")}
    assert {request.verb for request in nodes.server.audit_counts(mark)} == {"list", "get"}
    assert before["newcomer"]["labeler"]["outcome"] == "initialized"
    assert before["asks-1"]["lifecycle"]["outcome"] == "deletable"
    await nodes.kubelets.request("DELETE", f"{LEASES}/{WATCHER_LEASE_NAME}")
    nats, terms = f"--nats-url={nats_server.url}", ("not-ready-time", "evidence-time", "start-grace")
    async with run_services(
        tmp_path / "services",
        nodes.server,
        nodes.kubelets,
        nodes.machines,
        nats_url=nats_server.url,
        all_in_one=True,
        flags=(
            "--controllers=*,cloud-node-lifecycle",
            "--lifecycle-dry-run",
            *(f"--lifecycle-{term}=1s" for term in terms),
        ),
        wirings=(*DEFAULT_SERVICES, LIFECYCLE),
    ):
        for name, service, outcome in (
            ("newcomer", "labeler", "initialized"),
            ("asks-1", "lifecycle", "would-delete"),
        ):

            async def has_decided(name: str = name, service: str = service, outcome: str = outcome) -> bool:
                decisions = (await nodes.explained(name, nats))["lastMessages"]["decisions"]
                return (service, outcome) in [(each["service"], each["outcome"]) for each in decisions]

            await wait_until(has_decided, f"{service} says {outcome}", _LIFECYCLE_SECONDS)
        told = await nodes.explained("asks-1", nats, NOW_SUFFICES)
        words = await nodes.explain("asks-1", nats)
    [decided] = [each for each in told["lastMessages"]["decisions"] if each["service"] == "lifecycle"]
    evidence = before["asks-1"]["lifecycle"]["evidence"]
    assert all(piece["text"] in decided["reason"] for piece in evidence if piece["state"] == "has")
    assert told["lastMessages"]["machine"]["foreign_machines"][0]["node_name"] == "newcomer"
    assert "\n  lifecycle   would-delete, " in words.out
    after = await nodes.explained("newcomer")
    assert (after["state"], after["providerID"]) == ("initialized", "talos://metal/10.231.0.1")
    assert after["labeler"]["writes"] == []
