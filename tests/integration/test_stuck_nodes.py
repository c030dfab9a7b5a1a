"""A Node stuck by a machine or a service: `talos-ccm explain node NAME` alone tells the cause and the fix.

The services run as an operator runs them; faults are made in machines, kubelets, rights and processes. The
operator has a kubeconfig, and NATS as the watcher's pod has it; no talosconfig.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest

from libs.common.contract.services import LABELER
from libs.testbed.kubelets import SimKubelet
from libs.testbed.machine_fleet import make_machine
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_permissions import get_user_name
from libs.testbed.service_processes import ServiceProcesses
from tests.bus_actors import wait_until
from tests.integration.operator_shell import Cluster, CommandResult
from tests.integration.service_cluster import open_separate


class Stuck(NamedTuple):
    """A cluster in which the services run, and what they run on."""

    cluster: Cluster
    services: ServiceProcesses
    nats: NatsServer

    async def join(self, name: str, ip: str) -> None:
        await self.cluster.join(make_machine(name, ip))

    async def explain(self, name: str, *arguments: str) -> CommandResult:
        return await self.cluster.explain(name, *arguments, NATS_URL=self.nats.url, TALOSCONFIG="none")

    async def told(self, name: str, cause: str, fix: str) -> CommandResult:
        """The first lines, as soon as they say this."""
        found: list[CommandResult] = []

        async def says() -> bool:
            said = await self.explain(name)
            found[:] = [said]
            first, *others = said.out.splitlines()[:3]
            return first.startswith(f"{name} is not initialized") and all(
                part in line for part, line in zip((cause, fix), others, strict=True)
            )

        try:
            await wait_until(says)
        except AssertionError:
            if not found:
                raise
            first_lines = "\n".join(found[0].out.splitlines()[:3])
            pytest.fail(f"It does not say {cause!r} and {fix!r}, but\n{first_lines}")
        assert found[0].status == 1
        return found[0]


@pytest.fixture(scope="module")
async def stuck(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stuck]:
    """The default services, each a process."""
    home = tmp_path_factory.mktemp("stuck")
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(open_separate(home))
        nats = await stack.enter_async_context(NatsServer.start(home / "nats"))
        services = await cluster.serve(nats_url=nats.url)
        yield Stuck(Cluster.of("node", cluster), services, nats)


async def test_a_machine_that_does_not_answer(stuck: Stuck):
    silent = make_machine("silent", "10.233.0.4")
    await stuck.cluster.machines.put_machines(silent)
    await stuck.cluster.machines.set_faults(silent.id, unavailable=True)
    await stuck.cluster.kubelets.join(SimKubelet.of_machine(silent))
    said = await stuck.told(
        "silent", "Its machine does not answer the Talos API: ", "talosctl -n 10.233.0.4 version"
    )
    assert "  pending              metadata    machine queried: attempt " in said.out


async def test_another_machine_at_its_address(stuck: Stuck):
    await stuck.cluster.machines.put_machines(make_machine("newcomer", "10.233.0.6"))
    await stuck.cluster.kubelets.join(SimKubelet(name="replaced", ips=("10.233.0.6",)))
    await stuck.told(
        "replaced",
        "Another machine answers at its address: ",
        "is gone for good: kubectl delete node replaced",
    )


async def test_a_node_that_all_have_done_their_part_for_is_well(stuck: Stuck):
    """So that none of the others says what it says of whatever Node."""
    await stuck.join("fine", "10.233.0.11")

    async def is_well() -> bool:
        return "fine" in (await stuck.explain("fine")).out.splitlines()[0]

    await wait_until(is_well, "the Node is reported as fine")
    told = (await stuck.explain("fine")).out
    assert "  labeler     taint removed\n" in told


# ---- the services; what is ended here is started again


async def test_kubernetes_refuses_what_the_labeler_writes(stuck: Stuck):
    path, rights = await _rights_of_labeler(stuck)
    await stuck.cluster.kubelets.request("DELETE", path)
    try:
        await stuck.join("unpermitted", "10.233.0.14")
        await stuck.told(
            "unpermitted",
            "Kubernetes rejects the labeler's writes: ",
            "restore the permissions with helm upgrade",
        )
    finally:
        await stuck.cluster.kubelets.request("POST", path.rpartition("/")[0], body=rights)


async def _rights_of_labeler(stuck: Stuck) -> tuple[str, Any]:
    """The binding by which it has them on Nodes."""
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    answer = await stuck.cluster.kubelets.request("GET", bindings)
    user = get_user_name(LABELER)
    [found] = [one for one in answer.body["items"] if user in [each["name"] for each in one["subjects"]]]
    metadata = {"name": found["metadata"]["name"]}
    kept = {key: value for key, value in found.items() if key in ("roleRef", "subjects")}
    body = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": metadata}
    return f"{bindings}/{metadata['name']}", body | kept


async def test_nats_does_not_run(stuck: Stuck):
    await stuck.nats.kill()
    try:
        await stuck.join("unheard", "10.233.0.16")
        await stuck.told(
            "unheard",
            "NATS does not answer, so no service receives events: ",
            "app.kubernetes.io/component=nats",
        )
    finally:
        await stuck.nats.restart()
        await stuck.services.wait_until_ready()
