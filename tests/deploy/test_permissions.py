"""The installed chart on a real API server: the permissions of each account are sufficient and minimal."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from libs.common.contract.services import SERVICES, PolicyRule
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.helm.chart import NAMESPACE, ChartValues, render_manifests
from libs.testbed.helm.chart import RELEASE as PREFIX
from libs.testbed.kubelets import HttpResponse, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts, make_machine
from libs.testbed.service_permissions import get_account_user_name
from libs.testbed.service_processes import PATIENT_LEASE
from services.bootstrap.resource_names import ResourceNames
from services.bootstrap.resource_names import list_policy_rules as bootstrap_rights
from tests.bus_actors import wait_until
from tests.deploy.installation import Installation
from tests.deploy.pods import IP, Pod
from tests.deploy.test_chart_rights import of_role, of_wiring
from tests.integration.lifecycle_cluster import CONTROL_PLANE, Cluster

EXTERNAL = "203.0.113.7"
EVERYTHING = ChartValues(
    overrides={
        "enabledControllers": [
            "*",
            *(spec.controller.name for spec in SERVICES if not spec.runs_by_default),
        ],
        "services.watcher.extraArgs": list(PATIENT_LEASE),
        "services.ipam.extraArgs": [
            "--cluster-cidr=10.244.0.0/16",
            "--service-cluster-ip-range=10.96.0.0/16",
        ],
        "services.lifecycle.extraArgs": list(PATIENT_LEASE),
    }
)
# No account has load balancers here: test_balancer_kubernetes has the rights for them.
RIGHTS: dict[str, tuple[PolicyRule, ...]] = {
    wiring.service: tuple(rule for rule in wiring.policy_rules if not rule.controllers) for wiring in SERVICES
} | {"nats": bootstrap_rights(ResourceNames(namespace=NAMESPACE, prefix=PREFIX))}


Rule = tuple[str, ...]  # group, resource, verb, name ("" = any)


def rules_of(rights: Iterable[PolicyRule], namespace: str) -> set[Rule]:
    """The actions that these rules allow in that namespace, cluster-wide ones included."""
    return {rule[1:] for rule in of_wiring(rights) if rule[0] in ("", namespace)}


async def request_as(installed: Installation, account: str, path: str, body: dict[str, Any]) -> HttpResponse:
    """POST as that ServiceAccount."""
    user = get_account_user_name(account)
    return await installed.kubelets.request("POST", path, as_user=user, body=body)


async def list_rules(installed: Installation, account: str, namespace: str) -> set[Rule]:
    """All actions that the API server allows the account in that namespace."""
    kind = "SelfSubjectRulesReview"
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": {"namespace": namespace}}
    path = f"/apis/authorization.k8s.io/v1/{kind.lower()}s"
    answer = await request_as(installed, account, path, body)
    assert answer.status == 201, answer
    return {rule[1:] for rule in of_role({"rules": answer.body["status"]["resourceRules"]}, "")}


@pytest.fixture(scope="module")
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """A control plane whose audit log has the requests of these pods only."""
    async with ControlPlane.start(tmp_path_factory.mktemp("permissions-control-plane")) as running:
        yield running


@pytest.fixture(scope="module")
async def installed(
    own: ControlPlane, forked_services: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Installation]:
    """The chart with all services."""
    run_dir = tmp_path_factory.mktemp("installed")
    async with AsyncExitStack() as stack:
        machines = await stack.enter_async_context(MachineFleet.start(run_dir / "machines"))
        found = await asyncio.to_thread(render_manifests, EVERYTHING)
        installation = Installation.applied(own, machines, found)
        yield await stack.enter_async_context(installation)


@pytest.mark.parametrize("component", RIGHTS)
async def test_an_account_has_exactly_the_permissions_of_its_service_spec(
    component: str, installed: Installation
):
    for namespace in (NAMESPACE, "default", "kube-public"):
        common = await list_rules(installed, "default", namespace)
        given = await list_rules(installed, f"{PREFIX}-{component}", namespace) - common
        assert given == rules_of(RIGHTS[component], namespace), namespace


KUBELETS_TOKEN = {
    "token-id": "abcdef",
    "token-secret": "0123456789abcdef",
    "usage-bootstrap-authentication": "true",
}
OPAQUE, ACCOUNTS_TOKEN = "Opaque", "kubernetes.io/service-account-token"


@pytest.mark.parametrize(
    ("name", "kind", "permitted"),
    [
        (f"{PREFIX}-nats-labeler", OPAQUE, True),
        (f"{PREFIX}-nats-labeler", ACCOUNTS_TOKEN, False),
        ("bootstrap-token-abcdef", "bootstrap.kubernetes.io/token", False),
        ("another", OPAQUE, False),
    ],
)
async def test_the_bootstrap_can_only_create_its_own_secrets_and_no_token(
    name: str, kind: str, permitted: bool, installed: Installation
):
    """RBAC allows any name; the admission policy allows only its own names."""
    annotations = {"kubernetes.io/service-account.name": f"{PREFIX}-lifecycle"}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "annotations": annotations},
        "type": kind,
        "stringData": KUBELETS_TOKEN if name.startswith("bootstrap-token") else {},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets?dryRun=All"

    async def is_so() -> bool:
        answer = await request_as(installed, f"{PREFIX}-nats", path, secret)
        return answer.status in ((201, 409) if permitted else (403,))

    await wait_until(is_so, "the policy is in effect")


@pytest.fixture(scope="module")
async def running(
    installed: Installation, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    """NATS, every service, and a control plane that has joined."""
    run_dir = tmp_path_factory.mktemp("pods")
    await installed.run_nats(run_dir)
    cluster = Cluster(installed.kubelets, installed.machines)
    await cluster.join(make_machine(CONTROL_PLANE, "10.243.0.1", control_plane=True))
    await installed.run_services(run_dir)
    yield cluster
    await cluster.leave()


async def test_nodes_join_and_get_certificates_and_pod_cidrs_without_a_forbidden_request(
    running: Cluster, installed: Installation
):
    some = [make_machine("permitted-1", "10.243.0.2"), in_a_cloud("permitted-2", "10.243.0.3")]
    await running.join(*some)
    requests = [
        await running.kubelets.request_certificate(SimKubelet.of_machine(machine)) for machine in some
    ]
    for name in requests:
        assert (await running.kubelets.wait_for_outcome(name)).certificate
    foreign = await running.kubelets.request_certificate(
        SimKubelet.of_machine(some[0]), dns=["thief.example.com"]
    )
    assert "Denied" in (await running.kubelets.wait_for_outcome(foreign)).conditions
    names = (CONTROL_PLANE, *(machine.name for machine in some))
    await running.until_usable(*names)

    async def all_have_pod_cidrs() -> bool:
        return all([(await running.node(name))["spec"].get("podCIDRs") for name in names])

    await wait_until(all_have_pod_cidrs, "every Node has its pod CIDR")
    addresses = (await running.node("permitted-2"))["status"]["addresses"]
    assert {"type": "ExternalIP", "address": EXTERNAL} in addresses
    assert_nothing_was_forbidden(installed)


async def test_talos_ccm_in_the_watchers_pod_explains_a_node_without_arguments(
    running: Cluster, installed: Installation
):
    await running.until_usable(CONTROL_PLANE)
    nats = {"NATS_URL": f"tls://{IP}:{installed.pods['nats'].port('nats', 'client')}"}
    words = ("explain", "node", CONTROL_PLANE, "-o", "json")
    output = await installed.pods["watcher"].execute("watcher", "talos-ccm", *words, env=nats)
    messages = msgspec.json.decode(output)["lastMessages"]
    assert messages["problem"] is None
    assert messages["machine"]["node"]["metadata"]["name"] == CONTROL_PLANE
    assert "labeler" in {decided["service"] for decided in messages["decisions"]}
    assert_nothing_was_forbidden(installed)


def assert_nothing_was_forbidden(installed: Installation) -> None:
    """Neither by the API server nor by NATS."""
    assert installed.forbidden_requests() == {}
    for service in (wiring.service for wiring in SERVICES):
        assert "forbidden" not in log_of(installed.pods[service], service), service
    assert "violation" not in log_of(installed.pods["nats"], "nats")


def log_of(pod: Pod, container: str) -> str:
    """The whole log, in lower case."""
    return pod.children[container].log.read_text().lower()


def in_a_cloud(name: str, ip: str) -> SimMachineFacts:
    """A machine with an external address for the status of its Node."""
    return make_machine(name, ip, platform="hcloud", region="eu-central", external_ips=[EXTERNAL])
