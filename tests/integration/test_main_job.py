"""The main job on real parts: kubelets join, our processes run with their own rights, nodes become usable."""

from libs.common.contract.node import BLOCKED_CONDITION, UNINITIALIZED_TAINT
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from tests.bus_actors import wait_until
from tests.integration.conftest import StartServices

WRITES = (("patch", "nodes"), ("patch", "nodes/status"), ("create", "events"))


def writes(control_plane: ControlPlane, since: int) -> dict[tuple[str, str], int]:
    """How often our services have written each of what a joining node costs.

    A patch whose fence failed wrote nothing: kube-controller-manager moves the taints of a joining node.
    """
    counts = dict.fromkeys(WRITES, 0)
    for request, count in control_plane.audit_counts(since).items():
        written = (request.verb, request.resource)
        if request.user.startswith("talos-ccm") and request.succeeded and written in counts:
            counts[written] += count
    return counts


async def test_joining_nodes_become_usable_at_two_node_writes_and_one_event_each(
    start_services: StartServices, kubelets: KubeletFleet, machines: MachineFleet, control_plane: ControlPlane
):
    await start_services()
    since = control_plane.audit_mark()
    joining = [
        make_machine(f"job-{n}.example.com", f"10.200.0.{n + 1}", platform="hcloud", zone="z1")
        for n in range(20)
    ]
    await machines.put_machines(*joining)
    await kubelets.join_all(map(SimKubelet.of_machine, joining))
    try:
        # The Event is the last that is written about a joining node.
        await wait_until(lambda: writes(control_plane, since)["create", "events"] >= 20, "Synced events said")
        for machine in joining:
            node = (await kubelets.request("GET", f"/api/v1/nodes/{machine.name}")).body
            assert UNINITIALIZED_TAINT not in {taint["key"] for taint in node["spec"].get("taints", [])}
            assert node["spec"]["providerID"].startswith("hcloud://")
            assert node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "z1"
            assert BLOCKED_CONDITION not in {each["type"] for each in node["status"]["conditions"]}
        assert writes(control_plane, since) == dict.fromkeys(WRITES, 20)
    finally:
        for machine in joining:
            await kubelets.delete_node(machine.name)
        await machines.delete_machines(*(machine.id for machine in joining))
