"""`talos-ccm explain csr`: Kubernetes and machines are read, nothing is written, and csr does the same."""

from pathlib import Path

import pytest

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from libs.testbed.signing_requests import CSRS, make_request_pem
from tests.bus_actors import wait_until
from tests.integration.operator_shell import Cluster, assert_refused
from tests.integration.service_cluster import MEMORY, ServiceCluster, run_services

_SECONDS = 60
ONE, TWO, THREE = (make_machine(f"asks-{number}", f"10.231.0.{number}") for number in (1, 2, 3))

HEAD = make_machine("asks-head", "10.231.255.1", control_plane=True)  # which reports the Service networks


@pytest.fixture
async def cluster(separate_cluster: ServiceCluster) -> Cluster:
    await separate_cluster.machines.put_machines(HEAD)
    return Cluster.of("csr", separate_cluster)


async def test_a_good_request_would_be_approved_and_nothing_is_written(cluster: Cluster):
    await cluster.join(ONE, TWO)
    name = await cluster.asks(ONE)
    mark = cluster.server.audit_mark()
    said = await cluster.explain(name)
    assert (said.status, said.err) == (0, "")
    assert f"{name}  requested by node asks-1\n" in said.out
    assert "the machine at 10.231.0.1 answers as asks-1" in said.out
    assert "Machines queried: asks-1; 1 other was not queried (--all-machines)" in said.out
    assert {request.verb for request in cluster.server.audit_counts(mark)} == {"list"}
    assert (await cluster.explain("asks-1", "--node")).out.splitlines()[0] == said.out.splitlines()[0]


async def test_a_stolen_address_would_be_denied_and_the_owner_is_asked_as_well(cluster: Cluster):
    await cluster.join(ONE, TWO, THREE)
    name = await cluster.asks(ONE, ips=("10.231.0.1", "10.231.0.2"))
    told = await cluster.explained(name)
    assert told["machinesAsked"] == ["asks-1", "asks-2"]
    assert told["decision"]["now"] == "deny"
    assert "10.231.0.2 is Node asks-2's" in told["decision"]["reason"]
    assert (await cluster.explain(name)).status == 1
    assert (await cluster.explained(name, "--all-machines"))["machinesNotAsked"] == 0


async def test_where_two_machines_have_an_address_the_one_that_answers_there_gets_it(cluster: Cluster):
    shared = "10.231.0.99"
    there = ("10.231.0.10", shared)
    owner = make_machine("owner", "10.231.0.10", external_ips=(shared,), reachable_at=there, platform="aws")
    liar = make_machine("liar", "10.231.0.11", external_ips=(shared,), platform="aws")
    await cluster.machines.put_machines(owner, liar)
    kubelets = [SimKubelet(name="owner", ips=("10.231.0.10",)), SimKubelet(name="liar", ips=("10.231.0.11",))]
    await cluster.kubelets.join_all(kubelets)
    told = {}
    for kubelet in kubelets:
        name = await cluster.kubelets.request_certificate(kubelet, ips=(*kubelet.ips, shared))
        told[kubelet.name] = (await cluster.explained(name, "--all-machines"))["decision"]
    assert told["owner"]["now"] == "approve"
    assert (told["liar"]["now"], told["liar"]["check"]) == ("wait", "rivals")


async def test_a_node_that_is_none_of_ours_is_not_asked_and_withholds_nothing(cluster: Cluster):
    await cluster.join(ONE)
    await cluster.kubelets.join(SimKubelet(name="foreign", ips=("10.231.0.1",), is_uninitialized=False))
    told = await cluster.explained(await cluster.asks(ONE))
    assert (told["machinesAsked"], told["decision"]["now"]) == (["asks-1"], "approve")


async def test_an_address_of_the_service_networks_that_are_named_would_be_denied(cluster: Cluster):
    await cluster.join(ONE)
    told = await cluster.explained(await cluster.asks(ONE), "--service-networks=10.231.0.0/24")
    assert told["decision"]["now"] == "deny"
    assert "10.231.0.1 is a Service's" in told["decision"]["reason"]


async def test_without_a_talosconfig_it_says_what_is_not_known_and_how_to_give_access(cluster: Cluster):
    await cluster.join(ONE)
    said = await cluster.explain(await cluster.asks(ONE), TALOSCONFIG="none")
    assert said.status == 2
    assert "unknown  machine     cannot access the Talos API: no talosconfig" in said.out
    assert "Give access to Talos with --talosconfig" in said.out
    assert "passed   signature" in said.out
    said = await cluster.explain(
        "asks-1", "--node", "--without-talos", "--csr-allowed-networks=10.231.0.0/16", TALOSCONFIG="none"
    )
    assert (said.status, "waits    networks" in said.out) == (1, True)
    said = await cluster.explain(
        "asks-1",
        "--node",
        "--without-talos",
        "--csr-allowed-networks=10.231.0.0/16",
        "--service-cluster-ip-range=10.96.0.0/12",
        TALOSCONFIG="none",
    )
    assert said.status == 0
    assert "attested by the Node object only" in said.out


async def test_a_machine_that_is_silent_is_told_with_what_ends_the_wait(cluster: Cluster):
    await cluster.join(ONE)
    name = await cluster.asks(ONE)
    await cluster.machines.set_faults(ONE.id, unavailable=True)
    said = await cluster.explain(name)
    assert said.status == 1
    assert "waits    unreachable" in said.out
    assert "Make the Talos API (port 50000) of " in said.out


async def test_a_request_of_another_signer_is_none_of_ours_and_no_machine_is_asked(cluster: Cluster):
    await cluster.join(ONE)
    pem = make_request_pem(common_name="jane", dns=(), ips=(), organizations=())
    name = await cluster.kubelets.file_request(
        pem,
        user="admin",
        groups=("system:masters",),
        signer="kubernetes.io/kube-apiserver-client",
        usages=("digital signature", "client auth"),
    )
    said = await cluster.explain(name)
    assert (said.status, said.err) == (1, "")
    assert f"{name}  not handled by csr\n" in said.out
    assert "csr does not handle this signer or user" in said.out
    assert not [call for call in await cluster.machines.count_calls() if call.node]


async def test_what_the_node_wrote_steers_no_terminal(cluster: Cluster):
    await cluster.join(ONE)
    name = await cluster.asks(ONE, dns=("asks-1", "\x1b[2Jgone"))
    for arguments in ((name,), (name, "-o", "json")):
        said = await cluster.explain(*arguments)
        assert said.status == 1
        assert said.out.replace("\n", "").isprintable()
        assert "[2Jgone" in said.out


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (("none",), {}, "CertificateSigningRequest none not found"),
        (("none", "--node"), {}, "no request for a serving certificate of node none"),
        (("none",), {"KUBECONFIG": ""}, "cannot access the Kubernetes API: no API server is configured"),
    ],
)
async def test_what_cannot_be_asked_is_said_with_what_to_do(
    cluster: Cluster, arguments: tuple[str, ...], environment: dict[str, str], words: str
):
    assert_refused(await cluster.explain(*arguments, **environment), words)


async def test_who_may_not_list_requests_is_told_so(cluster: Cluster):
    assert_refused(
        await cluster.explain("any", KUBECONFIG=str(cluster.server.kubeconfig("stranger"))), "forbidden"
    )


async def test_what_is_explained_is_what_csr_then_does(tmp_path: Path, cluster: Cluster):
    """Explains a good request, a stolen address, a strange name, a waiting and a superseded request."""
    machines = [make_machine(f"does-{number}", f"10.231.1.{number}") for number in range(1, 7)]
    await cluster.join(*machines)
    names = [
        await cluster.asks(machines[0]),
        await cluster.asks(machines[1], ips=("10.231.1.2", "10.231.1.3")),
        await cluster.asks(machines[2], dns=("does-3", "api.example.com")),
        await cluster.asks(machines[3], ips=("10.231.1.4", "10.231.1.200")),
        await cluster.asks(machines[4], ips=("10.231.1.201",)),
        await cluster.asks(machines[4]),
    ]
    before = {name: await cluster.explained(name) for name in names}
    said = [(told["state"], told["decision"]["now"]) for told in before.values()]
    assert said[:4] == [
        ("pending", "approve"), ("pending", "deny"), ("pending", "deny"), ("pending", "wait")
    ]  # fmt: skip
    assert said[4][0] == "superseded"
    assert said[5] == ("pending", "approve")
    async with run_services(
        tmp_path / "services", cluster.server, cluster.kubelets, cluster.machines, **MEMORY
    ):
        conditions: dict[str, list[str]] = {}

        async def as_explained() -> bool:
            for name in names:
                found = await cluster.kubelets.request("GET", f"{CSRS}/{name}")
                status = found.body.get("status", {})
                conditions[name] = [one["type"] for one in status.get("conditions", [])]
            expected = [["Approved"], ["Denied"], ["Denied"], [], [], ["Approved"]]
            return [conditions[name] for name in names] == expected

        await wait_until(as_explained, "csr decides as explained", _SECONDS)
    after = await cluster.explained(names[1])
    assert (after["state"], after["decision"]) == ("denied", before[names[1]]["decision"])
    assert after["conditions"][0]["message"] == before[names[1]]["decision"]["reason"]
    said_of_good = await cluster.explain(names[0])
    assert said_of_good.status == 0
    assert "Approved by TalosCloudControllerManager" in said_of_good.out


async def test_the_real_api_server_is_asked_in_the_same_way(
    tmp_path: Path, control_plane: ControlPlane, kubelets: KubeletFleet, machines: MachineFleet
):
    cluster = Cluster("csr", tmp_path, control_plane, machines, kubelets)
    machine = make_machine("asks-really", "10.231.2.1")
    await cluster.join(machine)
    name = await cluster.asks(machine)
    try:
        said = await cluster.explain(name)
        assert (said.status, "unknown  networks" in said.out) == (2, True)
        await machines.put_machines(HEAD)
        said = await cluster.explain(name)
        assert (said.status, said.err) == (0, "")
        assert f"{name}  requested by node asks-really\n" in said.out
        assert (await cluster.explain("asks-really", "--node", "--all-machines")).status == 0
        assert (await cluster.explain("none")).status == 2
    finally:
        await kubelets.request("DELETE", f"{CSRS}/{name}")
        await machines.delete_machines(machine.id, HEAD.id)
        await kubelets.delete_node(machine.name)
