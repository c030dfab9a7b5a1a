"""Our services with the simulated API server in the place of the real one: same work, same rights."""

from collections import Counter
from typing import Any

import pytest

from libs.common.contract.services import LEASE_NAMESPACE, WATCHER_LEASE_NAME
from libs.testbed.machine_fleet import make_machine
from libs.testbed.nats_server import NatsServer
from tests.bus_actors import wait_until
from tests.integration.service_cluster import FORMS, ServiceCluster

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{WATCHER_LEASE_NAME}"
COUNT = 10


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
async def test_nodes_that_join_a_simulated_api_server_become_usable(
    simulated_cluster: ServiceCluster, nats_server: NatsServer, form: dict[str, Any]
):
    cluster, kubelets = simulated_cluster, simulated_cluster.kubelets
    await cluster.serve(**{"nats_url": nats_server.url} | form)
    mark = cluster.server.audit_mark()
    await cluster.join(
        *(make_machine(f"sim-{n}", f"10.220.0.{n}", platform="hcloud", zone="z1") for n in range(COUNT))
    )
    await cluster.wait_until_initialized(COUNT)
    nodes = await cluster.list_nodes()
    assert {node["metadata"]["labels"]["topology.kubernetes.io/zone"] for node in nodes} == {"z1"}
    assert all(node["spec"]["providerID"].startswith("hcloud://") for node in nodes)

    def writes() -> Counter[str]:
        done = cluster.server.audit_counts(mark).items()
        ours = [(request, n) for request, n in done if request.user.startswith("talos-ccm")]
        assert all(request.succeeded for request, _ in ours), ours
        return Counter({f"{r.verb} {r.resource}": n for r, n in ours if r.verb in {"patch", "create"}})

    await wait_until(lambda: writes()["create events"] == COUNT, "every Node has its Event", 10)
    assert writes()["patch nodes"] == COUNT
    assert (await kubelets.request("GET", LEASE)).body["spec"]["holderIdentity"]
