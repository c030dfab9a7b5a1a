"""Our services with the simulated API server in the place of the real one: same work, same rights."""

from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from libs.common.contract.node import UNINITIALIZED_TAINT
from libs.common.contract.services import LEASE_NAMESPACE, WATCHER_LEASE_NAME
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_processes import ServiceProcesses
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.bus_actors import wait_until

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{WATCHER_LEASE_NAME}"
COUNT = 10


@pytest.mark.parametrize(
    "form", [{"all_in_one": True, "bus": "memory"}, {}], ids=["all-in-one-memory", "separate-processes"]
)
async def test_nodes_that_join_a_simulated_api_server_become_usable(
    tmp_path: Path, machines: MachineFleet, nats_server: NatsServer, form: dict[str, Any]
):
    some = [make_machine(f"sim-{n}", f"10.220.0.{n}", platform="hcloud", zone="z1") for n in range(COUNT)]
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(SimApiServer.start(tmp_path / "api"))
        kubelets = await stack.enter_async_context(KubeletFleet.start(server))
        starting = ServiceProcesses.start(
            tmp_path / "services",
            server,
            kubelets,
            nats_url=nats_server.url,
            talosconfig=machines.write_talosconfig(),
            **form,
        )
        services = await stack.enter_async_context(starting)
        await services.wait_until_ready()
        await machines.put_machines(*some)
        stack.push_async_callback(machines.delete_machines, *(machine.id for machine in some))
        mark = server.audit_mark()
        await kubelets.join_all(SimKubelet.of_machine(machine) for machine in some)

        async def all_usable() -> bool:
            nodes = (await kubelets.request("GET", "/api/v1/nodes")).body["items"]
            taints = [taint["key"] for node in nodes for taint in node["spec"].get("taints", [])]
            return len(nodes) == COUNT and UNINITIALIZED_TAINT not in taints

        await wait_until(all_usable, "all usable", 30)
        nodes = (await kubelets.request("GET", "/api/v1/nodes")).body["items"]
        assert {node["metadata"]["labels"]["topology.kubernetes.io/zone"] for node in nodes} == {"z1"}
        assert all(node["spec"]["providerID"].startswith("hcloud://") for node in nodes)

        def writes() -> Counter[str]:
            done = server.audit_counts(mark).items()
            ours = [(request, n) for request, n in done if request.user.startswith("talos-ccm")]
            assert all(request.succeeded for request, _ in ours), ours
            return Counter({f"{r.verb} {r.resource}": n for r, n in ours if r.verb in {"patch", "create"}})

        await wait_until(lambda: writes()["create events"] == COUNT, "all told", 10)
        assert writes()["patch nodes"] == COUNT
        assert (await kubelets.request("GET", LEASE)).body["spec"]["holderIdentity"]
