"""`talos-ccm explain node`: Kubernetes, machines and NATS are read, nothing is written, services agree."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.contract.node import UNINITIALIZED_TAINT
from libs.common.contract.services import DEFAULT_SERVICES, LEASE_NAMESPACE, LIFECYCLE, WATCHER_LEASE_NAME
from libs.common.kube.lease import new_lease_document
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts, make_machine, make_member
from libs.testbed.nats_server import NatsServer
from tests.bus_actors import wait_until
from tests.integration.operator_shell import Cluster, assert_refused
from tests.integration.service_cluster import ServiceCluster, run_services

_SECONDS = 180  # lifecycle wants three looks, which may come a minute apart
ONE, TWO, THREE = (make_machine(f"shows-{number}", f"10.232.0.{number}") for number in (1, 2, 3))
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"
NOW_SUFFICES = "--lifecycle-not-ready-time=1s"


@pytest.fixture
async def cluster(separate_cluster: ServiceCluster) -> Cluster:
    made = Cluster.of("node", separate_cluster)
    await lead(made)
    return made


async def lead(cluster: Cluster) -> None:
    """A watcher that leads for as long as the test runs, as far as its Lease says."""
    lease = new_lease_document(LEASE_NAMESPACE, WATCHER_LEASE_NAME, "watcher-1", 3600, datetime.now(UTC))
    assert (await cluster.kubelets.request("POST", LEASES, body=lease)).status == 201


async def initialized(cluster: Cluster, machine: SimMachineFacts) -> None:
    """As the labeler leaves it, as far as that matters here."""
    path = f"/api/v1/nodes/{machine.name}"
    found = (await cluster.kubelets.request("GET", path)).body
    taints = [taint for taint in found["spec"].get("taints", []) if taint["key"] != UNINITIALIZED_TAINT]
    body = {"spec": {"taints": taints, "providerID": f"talos://metal/{machine.reachable_at[0]}"}}
    answer = await cluster.kubelets.request(
        "PATCH", path, body=body, content_type="application/merge-patch+json"
    )
    assert answer.status == 200, answer.body


async def replace(cluster: Cluster, old: SimMachineFacts, new: SimMachineFacts) -> None:
    """The machine is gone, and another one that is TWO's neighbour answers at its address."""
    present = [machine for machine in (TWO, THREE, new) if machine.id != old.id]
    members = tuple(map(make_member, present))
    await cluster.machines.delete_machines(old.id)
    await cluster.machines.put_machines(
        *(
            msgspec.structs.replace(machine, members=members, control_plane=machine.id == TWO.id)
            for machine in present
        )
    )


def texts(told: Any, kind: str) -> list[str]:
    return [piece["text"] for piece in told["lifecycle"]["evidence"] if piece["found"] == kind]


async def test_a_joining_node_is_told_what_would_be_written_and_nothing_is(cluster: Cluster):
    await cluster.join(ONE, TWO)
    mark = cluster.server.audit_mark()
    said = await cluster.explain("shows-1")
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith("shows-1 is being initialized since ")
    assert "the machine at 10.232.0.1 answers as shows-1 (metal)" in said.out
    assert "providerID talos://metal/10.232.0.1" in said.out
    assert {request.verb for request in cluster.server.audit_counts(mark)} == {"list", "get"}
    assert {call.node for call in await cluster.machines.count_calls() if call.node} == {"10.232.0.1"}


async def test_a_machine_that_is_silent_is_told_and_proves_nothing(cluster: Cluster):
    await cluster.join(ONE, TWO)
    await initialized(cluster, ONE)
    await cluster.kubelets.set_unreachable("shows-1", ago=timedelta(seconds=5))
    await cluster.machines.set_faults(ONE.id, unavailable=True)
    said = await cluster.explain("shows-1", NOW_SUFFICES)
    assert said.status == 1
    assert "failed   machine" in said.out
    assert "silence and errors prove nothing" in said.out
    assert "Lifecycle would keep it" in said.out


async def replace_first_of_three(cluster: Cluster) -> None:
    """Three initialized Nodes; the machine of the first is replaced by `newcomer`, which joins."""
    await cluster.join(ONE, TWO, THREE)
    for machine in (ONE, TWO, THREE):
        await initialized(cluster, machine)
    await cluster.kubelets.set_unreachable("shows-1", ago=timedelta(seconds=5))
    newcomer = make_machine("newcomer", "10.232.0.1")
    await replace(cluster, ONE, newcomer)
    await cluster.kubelets.join(SimKubelet.of_machine(newcomer))


async def test_another_machine_in_its_place_is_proof_as_far_as_one_look_can_be(cluster: Cluster):
    await replace_first_of_three(cluster)
    told = await cluster.explained("shows-1", NOW_SUFFICES)
    assert told["lifecycle"]["outcome"] == "deletable"
    assert any("answers the machine of newcomer with another UUID" in text for text in texts(told, "has"))
    assert (texts(told, "lacks"), len(texts(told, "later"))) == ([], 2)
    assert (await cluster.explain("shows-1", NOW_SUFFICES)).status == 1
    usual = await cluster.explained("shows-1")
    assert usual["lifecycle"]["outcome"] == "kept"
    assert any("which is not more than 5 min ago" in text for text in texts(usual, "lacks"))


async def test_while_discovery_still_knows_it_another_machine_in_its_place_proves_nothing(cluster: Cluster):
    await cluster.join(ONE, TWO, THREE)
    await initialized(cluster, ONE)
    await cluster.kubelets.set_unreachable("shows-1", ago=timedelta(seconds=5))
    newcomer = make_machine("newcomer", "10.232.0.1")
    await replace(cluster, ONE, newcomer)
    await cluster.machines.change_machine(
        TWO.id, members=tuple(map(make_member, (ONE, TWO, THREE, newcomer)))
    )
    told = await cluster.explained("shows-1", NOW_SUFFICES)
    assert told["lifecycle"]["outcome"] == "kept"
    assert any("discovery still lists a member shows-1" in text for text in texts(told, "lacks"))


async def test_whose_the_node_is_stands_in_the_file(cluster: Cluster):
    await cluster.join(ONE)
    file = cluster.home / "ccm-config.yaml"
    file.write_text(
        "ownership:\n  nodeSelector:\n    - matchExpressions:\n"
        "        - {key: metadata.name, operator: NotIn, values: [shows-1]}\n"
        "  controllers:\n    - name: node-csr-approval\n"
    )
    said = await cluster.explain("shows-1", f"--cloud-config={file}")
    assert said.status == 1
    assert "foreign  cloud-node " in said.out
    assert "managed  certificatesigningrequest-approving-controller" in said.out
    assert "Lifecycle would ignore it" in said.out
    file.write_text("ownership: {nodeSelectors: []}\n")
    refused = await cluster.explain("shows-1", f"--cloud-config={file}")
    assert (refused.status, refused.out) == (2, "")
    assert "nodeSelectors" in refused.err


async def test_without_a_talosconfig_it_says_what_is_not_known_and_how_to_give_access(cluster: Cluster):
    await cluster.join(ONE)
    said = await cluster.explain("shows-1", TALOSCONFIG="none")
    assert said.status == 2
    assert "unknown  machine     cannot access the Talos API: no talosconfig" in said.out
    await initialized(cluster, ONE)
    assert (await cluster.explain("shows-1", "--without-talos", TALOSCONFIG="none")).status == 0


async def test_a_node_without_node_ips_is_nobodys_machine(cluster: Cluster):
    await cluster.kubelets.join(SimKubelet(name="plain", ips=("10.232.0.9",), is_uninitialized=False))
    said = await cluster.explain("plain")
    assert said.status == 1
    assert not [call for call in await cluster.machines.count_calls() if call.node]


async def test_what_the_node_wrote_steers_no_terminal(cluster: Cluster):
    hostile = SimKubelet(name="odd", ips=("10.232.0.9",), provided_node_ip="\x1b[2Jgone\u202e")
    await cluster.kubelets.join(hostile)
    for arguments in (("odd",), ("odd", "-o", "json")):
        said = await cluster.explain(*arguments)
        assert said.status == 1
        assert said.out.replace("\n", "").isprintable()
        assert "[2Jgone" in said.out


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "Node none not found"),
        ({"KUBECONFIG": ""}, "cannot access the Kubernetes API: no API server is configured"),
    ],
)
async def test_what_cannot_be_asked_is_said_with_what_to_do(
    cluster: Cluster, environment: dict[str, str], words: str
):
    assert_refused(await cluster.explain("none", **environment), words)


async def test_who_may_not_list_nodes_is_told_so(cluster: Cluster):
    assert_refused(
        await cluster.explain("any", KUBECONFIG=str(cluster.server.kubeconfig("stranger"))), "forbidden"
    )


async def test_a_nats_that_is_not_there_is_the_cause_and_the_rest_is_told(cluster: Cluster):
    await cluster.join(ONE)
    said = await cluster.explain("shows-1", "--nats-url=nats://127.0.0.1:1")
    assert (said.status, said.err) == (1, "")
    assert said.out.splitlines()[1].startswith(
        "Cause         NATS does not answer, so no service receives events: "
    )
    assert "Last messages of the services\n  unknown: NATS does not answer: " in said.out


async def test_a_stream_that_is_not_there_is_told(cluster: Cluster, nats_server: NatsServer):
    await cluster.join(ONE)
    told = await cluster.explained("shows-1", f"--nats-url={nats_server.url}")
    assert "no stream TALOSCCM" in told["lastWords"]["problem"]


async def test_what_is_explained_is_what_the_services_then_do_and_say(
    tmp_path: Path, cluster: Cluster, nats_server: NatsServer
):
    """A node that joins, and one whose machine is gone; lifecycle runs dry, with short terms."""
    await replace_first_of_three(cluster)
    before = {name: await cluster.explained(name, NOW_SUFFICES) for name in ("newcomer", "shows-1")}
    assert before["newcomer"]["labeler"]["outcome"] == "initialized"
    assert before["shows-1"]["lifecycle"]["outcome"] == "deletable"
    await cluster.kubelets.request("DELETE", f"{LEASES}/{WATCHER_LEASE_NAME}")
    nats, terms = f"--nats-url={nats_server.url}", ("not-ready-time", "evidence-time", "start-grace")
    async with run_services(
        tmp_path / "services",
        cluster.server,
        cluster.kubelets,
        cluster.machines,
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
            ("shows-1", "lifecycle", "would-delete"),
        ):

            async def has_decided(name: str = name, service: str = service, outcome: str = outcome) -> bool:
                words = (await cluster.explained(name, nats))["lastWords"]
                return (service, outcome) in [(each["service"], each["outcome"]) for each in words["decided"]]

            await wait_until(has_decided, f"{service} says {outcome}", _SECONDS)
        told = await cluster.explained("shows-1", nats, NOW_SUFFICES)
        words = await cluster.explain("shows-1", nats)
    [decided] = [each for each in told["lastWords"]["decided"] if each["service"] == "lifecycle"]
    for proof in texts(before["shows-1"], "has"):
        assert proof in decided["reason"]
    assert told["lastWords"]["ofMachine"]["foreign_machines"][0]["node_name"] == "newcomer"
    assert "\n  lifecycle   would-delete, " in words.out
    after = await cluster.explained("newcomer")
    assert (after["state"], after["providerID"]) == ("initialized", "talos://metal/10.232.0.1")
    assert after["labeler"]["writes"] == []


async def test_the_real_api_server_and_machines_are_asked_in_the_same_way(
    tmp_path: Path, control_plane: ControlPlane, kubelets: KubeletFleet, machines: MachineFleet
):
    cluster = Cluster("node", tmp_path, control_plane, machines, kubelets)
    machine = make_machine("shows-really", "10.232.2.1")
    await cluster.join(machine)
    try:
        said = await cluster.explain("shows-really")
        assert (said.status in (0, 1), said.err) == (True, ""), "leadership is not tested here"
        assert "State         not initialized\n" in said.out
        assert "the machine at 10.232.2.1 answers as shows-really" in said.out
        assert (await cluster.explain("none")).status == 2
    finally:
        await machines.delete_machines(machine.id)
        await kubelets.delete_node(machine.name)
