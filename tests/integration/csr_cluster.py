"""The cluster of `csr_cases` on real parts: its Nodes, its machines, and requests filed by its users."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from cryptography import x509

from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node
from libs.testbed.kubelets import MERGE, KubeletFleet, RequestRejected, SimKubelet
from libs.testbed.machine_fleet import Address, MachineFleet, SimMachineFacts
from libs.testbed.service_permissions import get_collection_path
from libs.testbed.service_processes import ServiceProcesses
from libs.testbed.signing_requests import CSRS, SigningOutcome, read_outcome
from tests.bus_actors import wait_until
from tests.csr_actors import TwinNode
from tests.csr_cases import FACTS, NODES, UNREACHABLE, WHO, CsrCase


def machine_of(facts: MachineFacts, reachable_at: tuple[str, ...]) -> SimMachineFacts:
    """A machine with these facts."""
    return SimMachineFacts(
        id=facts.node_name,
        name=facts.node_name,
        reachable_at=reachable_at,
        hostname=facts.node_name,
        platform=facts.platform,
        addresses=tuple(
            Address(address=each.address, local=_local(each.address), link=each.link, flags=each.flags)
            for each in facts.addresses
        ),
    )


def _local(address: str) -> str:
    return "" if ":" in address else address.partition("/")[0]  # as Talos has it


def _ips(node: Node) -> tuple[str, ...]:
    return tuple(node.provided_node_ip.split(","))


@asynccontextmanager
async def the_cluster_of_the_cases(
    machines: MachineFleet, kubelets: KubeletFleet, twins: tuple[TwinNode, ...]
) -> AsyncIterator[None]:
    """All Nodes of the cases but web-1, and these twins, have joined; the unreachable machines still answer.

    web-1 joins later (`join_web_1`): then other machines had the addresses first that it has too.
    """
    running = [machine_of(facts, _ips(NODES[name])) for name, facts in FACTS.items()]
    running += [machine_of(twin.facts(), twin.ips) for twin in twins]
    joining = [SimKubelet(name=name, ips=_ips(node)) for name, node in NODES.items()]
    joining += [SimKubelet(name=twin.name, ips=twin.ips) for twin in twins]
    await machines.put_machines(*running)
    try:
        await kubelets.join_all(kubelet for kubelet in joining if kubelet.name != WHO)
        await _write_addresses(kubelets, NODES["writes-1"])
        await _write_pod_cidrs(kubelets, NODES["db-1"])
        yield
    finally:
        for kubelet in joining:
            await kubelets.delete_node(kubelet.name)
        await machines.delete_machines(*(machine.id for machine in running if machine.id not in UNREACHABLE))


async def join_web_1(kubelets: KubeletFleet) -> None:
    """The machine that lies joins."""
    await kubelets.join(SimKubelet(name=WHO, ips=_ips(NODES[WHO])))


async def _write_pod_cidrs(kubelets: KubeletFleet, node: Node) -> None:
    """The cluster's allocator gives the Node its podCIDRs."""
    cidrs = list(node.spec.pod_cidrs)
    body = {"spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs}}
    path = f"/api/v1/nodes/{node.name}"
    await kubelets.send("PATCH", path, body=body, content_type=MERGE)


async def _write_addresses(kubelets: KubeletFleet, node: Node) -> None:
    """Its kubelet writes addresses of another machine."""
    written = [{"type": each.type, "address": each.address} for each in node.status.addresses]
    path = f"/api/v1/nodes/{node.name}/status"
    body = {"status": {"addresses": written}}
    await kubelets.send("PATCH", path, as_node=node.name, body=body, content_type=MERGE)


@asynccontextmanager
async def all_users_may_request(kubelets: KubeletFleet) -> AsyncIterator[None]:
    """Users in no node group may create requests too, as in many clusters."""
    name, user = "all-users-may-request", "jane"
    group, resource = "certificates.k8s.io", "certificatesigningrequests"
    rbac = "rbac.authorization.k8s.io"
    rule = {"apiGroups": [group], "resources": [resource], "verbs": ["create"]}
    role = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": rbac, "kind": "Group", "name": "system:authenticated"}],
    }
    wanted = {"group": group, "resource": resource, "verb": "create"}
    review = {"spec": {"user": user, "groups": ["system:authenticated"], "resourceAttributes": wanted}}

    async def may() -> bool:
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool((await kubelets.request("POST", path, body=review)).body["status"]["allowed"])

    for manifest in (role, binding):
        await kubelets.request("POST", get_collection_path(manifest), body=manifest)
    try:
        await wait_until(may, "all users may request")
        yield
    finally:
        for manifest in (binding, role):
            await kubelets.request("DELETE", f"{get_collection_path(manifest)}/{name}")


async def request_case(kubelets: KubeletFleet, case: CsrCase) -> str:
    """Create the request of a case; its name. Raises RequestRejected."""
    return await kubelets.file_request(
        case.pem(),
        user=case.username,
        groups=case.groups,
        usages=case.usages,
        expiration_seconds=case.expiration_seconds,
        signer=case.signer,
    )


async def file_case(kubelets: KubeletFleet, case: CsrCase) -> str:
    """The request's name, "" if the API server rejects it as the table expects."""
    try:
        name = await request_case(kubelets, case)
    except RequestRejected:
        assert case.refused_by_api is not False, case.name
        return ""
    assert not case.refused_by_api, case.name
    return name


async def state_of(kubelets: KubeletFleet, name: str) -> SigningOutcome:
    """The outcome of a request so far."""
    return read_outcome((await kubelets.request("GET", f"{CSRS}/{name}")).body)


def names_in(outcome: SigningOutcome) -> tuple[list[str], list[str]]:
    """DNS names and addresses in the certificate, each in their order."""
    certificate = x509.load_pem_x509_certificate(outcome.certificate)
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return found.get_values_for_type(x509.DNSName), list(map(str, found.get_values_for_type(x509.IPAddress)))


async def until_said(services: ServiceProcesses, process: str, *words: str) -> None:
    """The process has logged a line with all these words."""
    log = services.children[process].log

    def said() -> bool:
        return any(all(word in line for word in words) for line in log.read_text().splitlines())

    await wait_until(said, f"{process} says {words}")


def pids_of(services: ServiceProcesses) -> dict[str, int]:
    """Pages of the running processes by name."""
    return {name: child.pid for name, child in services.children.items() if child.is_running}


async def all_still_ready(services: ServiceProcesses, pids: Mapping[str, int]) -> None:
    """The same processes as at the beginning run, and say that they are ready."""
    assert pids_of(services) == pids
    await services.wait_until_ready()
