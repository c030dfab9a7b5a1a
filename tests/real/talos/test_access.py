"""What Talos's own roles and resource policy allow, and what our client makes of a rejection."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from libs.talos import resources
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.machine_facts import SimMachineFacts, make_machine
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.pki import TalosPki
from tests.contract.cosi_wire import connected, encode
from tests.talos_actors import asking, query_fault, write_config_of_foreign_client

SENSITIVE = {
    "MachineConfigs.config.talos.dev": "config",
    "OSRootSecrets.secrets.talos.dev": "secrets",
    "ApiCertificates.secrets.talos.dev": "secrets",
    "KubernetesSecrets.secrets.talos.dev": "secrets",
    "KubeletConfigs.kubernetes.talos.dev": "k8s",
    "KubeletSpecs.kubernetes.talos.dev": "k8s",
    "APIServerConfigs.kubernetes.talos.dev": "controlplane",
    "DiscoveryConfigs.cluster.talos.dev": "config",
    "LinkSpecs.net.talos.dev": "network",
    "NodeLabelSpecs.k8s.talos.dev": "k8s",
}
EVERY_RESOURCE = [each for each in vars(resources).values() if isinstance(each, resources.ResourceRef)]
EVERY_RESOURCE += resources.INVENTORY.values()


@pytest.mark.parametrize("asked", EVERY_RESOURCE, ids=lambda asked: asked.step)
async def test_a_reader_can_list_and_watch_each_resource_that_we_read(
    front: MachineFleet, worker: SimMachineFacts, control: SimMachineFacts, asked: resources.ResourceRef
):
    machine = control if asked is resources.CONTROLLER_MANAGER else worker
    machines = front
    async with connected(machines.endpoints[0], machines.pki) as reader:
        listed = await reader.list(machine.reachable_at[0], asked.namespace, asked.type)
        assert listed, "the machine has one"
        async with reader.watch(machine.reachable_at[0], asked.namespace, asked.type) as watch:
            assert [(await watch.event())[1] for _ in listed]


async def test_our_client_reads_everything_as_a_reader(
    front: MachineFleet, worker: SimMachineFacts, control: SimMachineFacts, tmp_path: Path
):
    node = worker.reachable_at[0]
    async with asking(front.write_talosconfig(tmp_path / "config")) as api:
        facts = await api.fetch_facts(node, deadline_seconds=HANG_SECONDS)
        inventory = await api.fetch_inventory(node, list(resources.INVENTORY), deadline_seconds=HANG_SECONDS)
        networks = await api.fetch_cluster_networks(deadline_seconds=HANG_SECONDS)
    assert (facts.node_name, facts.platform) == (worker.name, worker.platform)
    assert inventory.faults == {}
    assert networks.pod_cidrs == control.pod_cidrs


@pytest.mark.parametrize("role", ["os:reader", "os:operator", "os:admin"])
@pytest.mark.parametrize("kind", SENSITIVE)
async def test_only_an_admin_reads_a_sensitive_type(
    front: MachineFleet, worker: SimMachineFacts, role: str, kind: str
):
    machines, node = front, worker.reachable_at[0]
    async with connected(machines.endpoints[0], machines.pki, roles=(role,)) as client:
        if role == "os:admin":
            await client.list(node, SENSITIVE[kind], kind)
            return
        with pytest.raises(GRPCError, match="not authorized") as refused:
            await client.list(node, SENSITIVE[kind], kind)
        assert refused.value.status is Status.PERMISSION_DENIED


@pytest.mark.parametrize("role", ["os:reader", "os:none"])
async def test_a_role_in_the_metadata_of_a_call_is_ignored(
    front: MachineFleet, worker: SimMachineFacts, role: str
):
    machines = front
    request = encode((1, "config"), (2, "MachineConfigs.config.talos.dev"), (3, "v1alpha1"), (4, b""))
    async with connected(machines.endpoints[0], machines.pki, roles=(role,)) as client:
        for node in (None, worker.reachable_at[0]):
            with pytest.raises(GRPCError, match="not authorized"):
                await client.call("/cosi.resource.State/Get", request, node, **{"talos-role": "os:admin"})


@pytest.mark.parametrize("role", ["os:none", "os:etcd:backup", "os:impersonator"])
async def test_a_role_that_may_not_read_is_a_permission_fault(
    front: MachineFleet, worker: SimMachineFacts, tmp_path: Path, role: str
):
    config = front.write_talosconfig(tmp_path / "config", roles=(role,))
    async with asking(config) as api:
        fault = await query_fault(api, worker.reachable_at[0])
    assert fault.kind == "permission"
    assert "not authorized" in fault.message


async def test_a_certificate_without_the_address_of_its_machine_is_another_machine(
    front: MachineFleet, tmp_path: Path
):
    node, machines = "10.80.0.2", front
    await machines.put_machines(make_machine("web-2", node))
    await front.issue_without_addresses("web-2")
    async with asking(machines.write_talosconfig(tmp_path / "config")) as api:
        fault = await query_fault(api, node)
    await machines.delete_machines("web-2")
    assert fault.kind == "wrong_machine", fault


async def test_an_endpoint_that_is_a_worker_answers_only_for_itself(
    front: MachineFleet, worker: SimMachineFacts, control: SimMachineFacts, tmp_path: Path
):
    await front.lead_endpoints_to(worker.id)
    async with asking(front.write_talosconfig(tmp_path / "config")) as api:
        facts = await api.fetch_facts(worker.reachable_at[0], deadline_seconds=HANG_SECONDS)
        fault = await query_fault(api, control.reachable_at[0])
    await front.lead_endpoints_to(control.id)
    assert facts.node_name == worker.name
    assert "no request forwarding" in fault.message


async def test_a_client_of_a_foreign_ca_is_a_certificate_fault(
    front: MachineFleet, worker: SimMachineFacts, tmp_path: Path
):
    """We trust their CA, but they do not trust ours: with TLS 1.3 our own handshake succeeds."""
    async with asking(write_config_of_foreign_client(front, tmp_path)) as api:
        fault = await query_fault(api, worker.reachable_at[0])
    assert (fault.kind, fault.step) == ("certificate", "connect")


async def test_a_server_of_a_foreign_ca_is_a_certificate_fault(
    front: MachineFleet, worker: SimMachineFacts, tmp_path: Path
):
    foreign = TalosPki(tmp_path / "pki", ["127.0.0.1"])
    config = tmp_path / "config"
    config.write_text(foreign.talosconfig(front.endpoints, lifetime=timedelta(hours=1)))
    async with asking(config) as api:
        fault = await query_fault(api, worker.reachable_at[0])
    assert (fault.kind, fault.step) == ("certificate", "connect")
