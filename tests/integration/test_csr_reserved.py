"""At the real API server: what belongs to Services and to the API server is certified to no worker."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path

import pytest

from libs.common.contract.machine import PlatformMetadata
from libs.common.contract.node import CONTROL_PLANE_LABEL
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Unreachable
from libs.common.kube.load_kube_config import load_kube_config
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kube_credentials import API_SERVER_HOSTS
from libs.testbed.kubelets import MERGE, KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import Address, MachineFleet, SimMachineFacts
from libs.testbed.signing_requests import SigningOutcome
from tests.bus_actors import wait_until
from tests.integration.conftest import StartServices
from tests.integration.csr_cluster import names_in, state_of
from tests.integration.service_cluster import MEMORY

SERVICE_ADDRESS, ENDPOINT_NAME, VIRTUAL_IP = "10.96.0.1", "api.prod.example.com", "10.255.0.10"
PUBLIC, FULL_NAME = "203.0.113.1", "cp-1.example.com"  # the control plane whose API server answers


def machine(
    name: str, ip: str, *more: str, hostname: str = "", control_plane: bool = False
) -> SimMachineFacts:
    """It has `more` addresses, with their prefix length, and reports that host name of itself."""
    found = (f"{ip}/24", *more)
    return SimMachineFacts(
        id=name,
        name=name,
        reachable_at=(ip,),
        hostname=name,
        control_plane=control_plane,
        platform=PlatformMetadata(platform="metal", hostname=hostname),
        addresses=tuple(
            Address(address=text, local=text.partition("/")[0], link="eth0", flags=128) for text in found
        ),
    )


CP_1 = machine(
    "cp-1", "10.255.0.1", f"{PUBLIC}/26", f"{VIRTUAL_IP}/32", hostname=FULL_NAME, control_plane=True
)
CP_2 = machine("cp-2", "10.255.0.2", hostname="cp-2.example.com", control_plane=True)
LIAR = machine("liar", "10.255.0.9", f"{SERVICE_ADDRESS}/32", f"{VIRTUAL_IP}/32", hostname=ENDPOINT_NAME)


class Cluster:
    """Machines of its own, whose control planes can be kept from reporting networks."""

    def __init__(self, kubelets: KubeletFleet, machines: MachineFleet) -> None:
        self._kubelets = kubelets
        self.machines = machines
        self.filed: list[str] = []

    async def asks(self, machine: SimMachineFacts, *ips: str, dns: tuple[str, ...] = ()) -> str:
        """Its kubelet asks for these besides its name and node IP."""
        kubelet = SimKubelet.of_machine(machine)
        own = machine.reachable_at
        name = await self._kubelets.request_certificate(kubelet, ips=(*own, *ips), dns=(machine.name, *dns))
        self.filed.append(name)
        return name

    async def outcome(self, name: str) -> SigningOutcome:
        return await self._kubelets.wait_for_outcome(name, seconds=30)

    async def undecided(self, name: str) -> bool:
        return not (await state_of(self._kubelets, name)).conditions


async def label_as_control_plane(kubelets: KubeletFleet, name: str) -> None:
    """As Talos does with an admin's identity; a kubelet may not."""
    labelled = await kubelets.request(
        "PATCH",
        f"/api/v1/nodes/{name}",
        body={"metadata": {"labels": {CONTROL_PLANE_LABEL: ""}}},
        content_type=MERGE,
    )
    assert labelled.status == HTTPStatus.OK


@pytest.fixture
async def cluster(
    tmp_path: Path, start_services: StartServices, kubelets: KubeletFleet
) -> AsyncIterator[Cluster]:
    """All have joined, csr runs on the memory bus, and no control plane reports the Service networks."""
    async with AsyncExitStack() as stack:
        machines = await stack.enter_async_context(MachineFleet.start(tmp_path / "machines"))
        everybody = (CP_1, CP_2, LIAR)
        await machines.put_machines(*everybody)
        for each in (CP_1, CP_2):
            await machines.set_faults(each.id, not_found=["ControllerManagerConfigs.kubernetes.talos.dev"])
        await kubelets.join_all([SimKubelet.of_machine(each) for each in everybody])
        for each in everybody:
            stack.push_async_callback(kubelets.delete_node, each.name)
        for each in (CP_1, CP_2):
            await label_as_control_plane(kubelets, each.name)
        await start_services(**MEMORY, talosconfig=machines.write_talosconfig(), service_networks="")
        yield Cluster(kubelets, machines)


async def until_waiting(cluster: Cluster, services_log: Path, name: str, words: str) -> None:
    """csr has logged that this request waits for that."""

    def is_logged() -> bool:
        return any(name in line and words in line for line in services_log.read_text().splitlines())

    await wait_until(is_logged, f"{name} waits for {words}")


async def test_at_the_start_a_service_address_waits_and_what_is_the_api_servers_never_passes(
    cluster: Cluster, tmp_path: Path
):
    log = tmp_path / "services" / "all-in-one.log"
    stolen = await cluster.asks(LIAR, SERVICE_ADDRESS)
    await until_waiting(cluster, log, stolen, "Service networks are not known")
    assert await cluster.undecided(stolen)
    named = await cluster.asks(LIAR, dns=(ENDPOINT_NAME,))
    denied = await cluster.outcome(named)
    assert ENDPOINT_NAME in denied.conditions["Denied"]["message"]
    honest = await cluster.asks(CP_2, dns=("cp-2.example.com",))
    await until_waiting(cluster, log, honest, "Service networks are not known")
    for each in (CP_1, CP_2):
        await cluster.machines.set_faults(each.id)
    granted = await cluster.outcome(honest)
    assert names_in(granted) == (["cp-2", "cp-2.example.com"], ["10.255.0.2"])
    first = await cluster.outcome(await cluster.asks(CP_1, PUBLIC, dns=(FULL_NAME,)))
    assert names_in(first) == (["cp-1", FULL_NAME], ["10.255.0.1", PUBLIC])
    again = await cluster.asks(LIAR, SERVICE_ADDRESS)
    assert "is a Service's" in (await cluster.outcome(again)).conditions["Denied"]["message"]
    for thief, address in ((LIAR, VIRTUAL_IP), (CP_1, VIRTUAL_IP)):
        name = await cluster.asks(thief, address)
        await until_waiting(cluster, log, name, f"{address} is in the certificate of an API server")
        assert await cluster.undecided(name)


async def test_the_certificate_of_the_api_server_is_read_without_a_right_and_without_a_request(
    control_plane: ControlPlane,
):
    user = "any-user"
    api = KubeApi(load_kube_config(control_plane.kubeconfig(user), {}), user_agent="talos-ccm/test")
    since = control_plane.audit_mark()
    try:
        identity = await api.fetch_server_identity()
    finally:
        await api.close()
    assert identity.names | identity.addresses == set(API_SERVER_HOSTS)
    assert not [request for request in control_plane.audit_counts(since) if request.user == user]


async def test_an_api_server_that_does_not_answer_or_shows_no_certificate_is_unreachable(
    control_plane: ControlPlane, tmp_path: Path
):
    text = control_plane.kubeconfig().read_text()
    for server, words in (("https://127.0.0.1:1", "127.0.0.1:1"), ("http://127.0.0.1:1", "plain HTTP")):
        path = tmp_path / "kubeconfig"
        path.write_text(text.replace(control_plane.server, server))
        api = KubeApi(load_kube_config(path, {}), user_agent="talos-ccm/test")
        with pytest.raises(Unreachable, match=words):
            await api.fetch_server_identity()
        await api.close()
