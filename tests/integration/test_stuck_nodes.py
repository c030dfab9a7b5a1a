"""A Node stuck by a machine or a service: `talos-ccm explain node NAME` alone tells the cause and the fix.

The services run as an operator runs them; faults are made in machines, kubelets, rights and processes. The
operator has a kubeconfig, and NATS as the watcher's pod has it; no talosconfig.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

import pytest

from libs.common.contract.services import LABELER
from libs.testbed.kubelets import SimKubelet
from libs.testbed.machine_fleet import SimMachineFacts, make_machine
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_permissions import get_user_name
from libs.testbed.service_processes import ServiceProcesses
from tests.bus_actors import wait_until
from tests.integration.operator_shell import Cluster, CommandResult
from tests.integration.service_cluster import open_separate

FILE: Final = """
transformations:
  - name: reads a field that does not exist
    nodeSelector: [{matchExpressions: [{key: hostname, operator: In, values: [by-rule]}]}]
    platformMetadata: {ProviderID: "aws://{{ .NoSuchField }}"}
"""


class Stuck(NamedTuple):
    """A cluster in which the services run, and what they run on."""

    cluster: Cluster
    services: ServiceProcesses
    nats: NatsServer

    async def join(self, name: str, ip: str) -> None:
        await self.cluster.join(make_machine(name, ip))

    async def explain(self, name: str, *arguments: str) -> CommandResult:
        return await self.cluster.explain(name, *arguments, NATS_URL=self.nats.url, TALOSCONFIG="none")

    async def told(self, name: str, cause: str, fix: str, what: str = "not initialized") -> CommandResult:
        """The first lines, as soon as they say this."""
        found: list[CommandResult] = []

        async def says() -> bool:
            said = await self.explain(name)
            found[:] = [said]
            first, *others = said.out.splitlines()[:3]
            return first.startswith(f"{name} is {what}") and all(
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
        file = home / "ccm-config.yaml"
        file.write_text(FILE)
        services = await cluster.serve(nats_url=nats.url, flags=(f"--cloud-config={file}",))
        yield Stuck(Cluster.of("node", cluster), services, nats)


class Case(NamedTuple):
    """A kubelet that joins, and what `explain` says of its Node."""

    kubelet: SimKubelet
    cause: str
    fix: str
    detail: str = ""
    machines: tuple[SimMachineFacts, ...] = ()
    faults: dict[str, Any] | None = None  # of the first machine


def with_machine(number: int, name: str, cause: str, fix: str, detail: str = "", **faults: bool) -> Case:
    machine = make_machine(name, f"10.233.0.{number}")
    return Case(SimKubelet.of_machine(machine), cause, fix, detail, (machine,), faults)


ANNOUNCER: Final = make_machine("announcer", "10.233.0.17", ip6="fd00:233::17")
CASES: Final = (
    Case(
        SimKubelet(name="bad-ip", ips=("10.233.0.3",), provided_node_ip="127.0.0.1"),
        "it is a loopback address",
        "machine.kubelet.nodeIP.validSubnets",
    ),
    with_machine(
        4,
        "silent",
        "Its machine does not answer the Talos API: ",
        "talosctl -n 10.233.0.4 version",
        "  pending              metadata    machine queried: attempt ",
        unavailable=True,
    ),
    with_machine(
        5,
        "refused",
        "Talos rejects the role of metadata's credential",
        "allowedRoles: [os:reader]",
        permission_denied=True,
    ),
    Case(
        SimKubelet(name="replaced", ips=("10.233.0.6",)),
        "Another machine answers at its address: ",
        "is gone for good: kubectl delete node replaced",
        machines=(make_machine("newcomer", "10.233.0.6"),),
    ),
    Case(
        SimKubelet.of_machine(ANNOUNCER, ips=("10.233.0.16", "fd00:233::17")),
        "Its kubelet announces an address of another machine: ",
        "Correct machine.kubelet.nodeIP.validSubnets",
        "machine rightful answers at 10.233.0.16",
        (make_machine("rightful", "10.233.0.16"), ANNOUNCER),
    ),
    with_machine(
        7,
        "by-rule",
        "A rule of --cloud-config should set its providerID but fails: ",
        "talos-ccm render FILE --from-cluster by-rule",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kubelet.name)
async def test_a_node_that_its_kubelet_machine_or_rule_keeps_uninitialized(case: Case, stuck: Stuck):
    await stuck.cluster.machines.put_machines(*case.machines)
    if case.faults:
        await stuck.cluster.machines.set_faults(case.machines[0].id, **case.faults)
    await stuck.cluster.kubelets.join(case.kubelet)
    assert case.detail in (await stuck.told(case.kubelet.name, case.cause, case.fix)).out


async def test_a_certificate_that_is_denied(stuck: Stuck):
    machine = make_machine("asks-much", "10.233.0.10")
    await stuck.cluster.join(machine)
    name = await stuck.cluster.asks(machine, dns=("kubernetes",))
    cause, fix = f"The serving certificate {name} is denied", f"talos-ccm explain csr {name}"
    await stuck.told("asks-much", cause, fix, what="without a serving certificate")


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
