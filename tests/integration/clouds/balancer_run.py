"""Takes the steps of the cases with one controller and its cloud, on a real control plane."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final, Literal, Protocol

import msgspec

from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.clouds.api_server import SimRequest
from libs.testbed.kubelets import MERGE, KubeletFleet
from libs.testbed.native_ccm import BalancerTreatment, CloudInstance, NativeCcm
from tests.bus_actors import wait_until
from tests.clouds.balancer_actors import BalancerCluster
from tests.integration.clouds.balancer_cases import (
    AUTOSCALER,
    CASES,
    EXCLUDE,
    NODES,
    PHASES,
    TARGETS,
    TARGETS_AT_THE_END,
    Case,
    NodeCase,
    Outcome,
    Patch,
    Phase,
    Step,
    Told,
)

Controller = Literal["native", "ours"]  # native: that of k8s.io/cloud-provider
NAMESPACES: Final[Mapping[Controller, str]] = {"native": "balancers-native", "ours": "balancers-ours"}
NODE_PATH: Final = "/api/v1/nodes"
HETZNER: Final = "load-balancer.hetzner.cloud"
PORTS: Final = ({"name": "http", "port": 80},)
# The Nodes that are targets of a load balancer that is created in this phase
EXPECTED: Final[Mapping[Phase, frozenset[str]]] = {
    "no Nodes": frozenset(),
    "Nodes": TARGETS,
    "a Node is drained": TARGETS - {"drained-later"},
    "Nodes leave": TARGETS_AT_THE_END,
}


class Cloud(Protocol):
    """The cloud of the controller under test."""

    @property
    def unreachable(self) -> frozenset[str]:
        """The names of Nodes that this cloud cannot have as targets."""
        ...

    def add_server(self, name: str) -> str:
        """Create a server; return the providerID of its Node."""
        ...

    def treat(self, case: Case, *, refuses: bool) -> None:
        """Treat the load balancer as the case needs. Refuse all writes, as if the quota were used up."""
        ...

    def list_targets(self) -> Mapping[str, frozenset[str]]:
        """List the names of the Nodes that are targets, by the name of the Service."""
        ...


class NativeCloud:
    """The file that is the cloud of Kubernetes' own controller."""

    unreachable: Final[frozenset[str]] = frozenset()

    def __init__(self, native: NativeCcm) -> None:
        self._native = native

    def add_server(self, name: str) -> str:
        instance = CloudInstance(name=name, provider_id=f"hcloud://{name}")
        self._native.put_instances(instance)
        return instance.provider_id

    def treat(self, case: Case, *, refuses: bool) -> None:
        treatment = BalancerTreatment(
            ingress=case.ingress, error="quota exceeded" if refuses else "", retry_seconds=1.0
        )
        self._native.treat_balancer(f"{NAMESPACES['native']}/{case.name}", treatment)

    def list_targets(self) -> Mapping[str, frozenset[str]]:
        balancers = self._native.list_balancers().items()
        return {service.partition("/")[2]: frozenset(nodes) for service, nodes in balancers}


class HetznerCloud:
    """The simulated Hetzner Cloud, where a load balancer has the name of its Service."""

    unreachable: Final = frozenset(name for name, node in NODES.items() if not node.has_server)

    def __init__(self, cluster: BalancerCluster) -> None:
        self._cluster = cluster
        self._refused: set[str] = set()
        cluster.cloud.before_answer = self._refuse

    def add_server(self, name: str) -> str:
        number = len(self._cluster.project.tables["servers"]) + 1
        return f"hcloud://{self._cluster.project.add_server(name, ipv4=f'192.0.2.{number}')}"

    def treat(self, case: Case, *, refuses: bool) -> None:
        (self._refused.add if refuses else self._refused.discard)(case.name)

    def list_targets(self) -> Mapping[str, frozenset[str]]:
        names = {each["id"]: each["name"] for each in self._cluster.project.tables["servers"].values()}
        return {
            balancer["name"]: frozenset(names[target["server"]["id"]] for target in balancer["targets"])
            for balancer in self._cluster.balancers
        }

    def _refuse(self, request: SimRequest) -> None:
        if request.method != "GET" and self._find_name(request) in self._refused:
            path = re.escape(request.path)
            self._cluster.cloud.add_fault("quota", path, method=request.method, count=1, effect="never")

    def _find_name(self, request: SimRequest) -> str:
        number = re.match(r"/load_balancers/(\d+)", request.path)
        if number is None:
            return str(msgspec.json.decode(request.body)["name"])
        found = self._cluster.project.tables["load_balancers"].get(int(number[1]))
        return str(found["name"]) if found else ""


class ConformanceRun:
    """The Services of the table in a namespace of their own, and one controller for them."""

    def __init__(self, kubelets: KubeletFleet, controller: Controller, cloud: Cloud) -> None:
        self._kubelets = kubelets
        self._is_ours = controller == "ours"
        self._cloud = cloud
        self._namespace = f"/api/v1/namespaces/{NAMESPACES[controller]}"
        self._services = f"{self._namespace}/services"

    def expect(self, case: Case) -> Outcome:
        """Return the outcome of the case with this controller."""
        outcome = case.ours.apply(case.outcome) if self._is_ours and case.ours else case.outcome
        if outcome.targets is None:
            return outcome
        return msgspec.structs.replace(outcome, targets=outcome.targets - self._cloud.unreachable)

    async def take_phase(self, phase: Phase) -> dict[str, Outcome]:
        """Change the Nodes, take all steps of the phase, and return the outcomes of its cases."""
        await self._enter(phase)
        following = PHASES[PHASES.index(phase) + 1 :][:1]
        async with asyncio.TaskGroup() as group:
            for case in CASES:
                if case.phase == phase:
                    ours = case.ours.steps if self._is_ours and case.ours else None
                    group.create_task(self._take_steps(case, ours or case.steps))
                elif case.phase in following:
                    group.create_task(self._take_steps(case, case.earlier))
        await self._wait_for_events(phase)
        expected = {case.name: self.expect(case) for case in CASES if case.phase == phase}
        return await wait_for_outcomes(self, expected)

    async def list_outcomes(self) -> dict[str, Outcome]:
        """Return the outcome of each case that has begun."""
        targets = self._cloud.list_targets()
        services = {each["metadata"]["name"]: each for each in await self._list("services")}
        events: dict[str, set[str]] = {}
        # kube-apiserver records Events about Services, too, such as ClusterIPNotAllocated.
        for each in await self._list("events?fieldSelector=source=service-controller"):
            told = events.setdefault(each["involvedObject"]["name"], set())
            told.add(f"{each['type']} {each['reason']}")
        return {
            case.name: build_outcome(
                services.get(case.name),
                frozenset(events.get(case.name, ())),
                targets.get(case.name),
            )
            for case in CASES
        }

    async def end(self) -> None:
        """Delete all Services, and wait until nothing of them is left in the cloud."""
        for case in CASES:
            self._cloud.treat(case, refuses=False)
        for each in await self._list("services"):
            path = f"{self._services}/{each['metadata']['name']}"
            change: dict[str, Any] = {"annotations": {"changed": "to end a pause after a refusal"}}
            if "loadBalancerClass" in each["spec"]:
                change = {"finalizers": None}  # that of another controller, which is the test
            await self._kubelets.request("DELETE", path)
            await self._kubelets.request("PATCH", path, body={"metadata": change}, content_type=MERGE)

        async def is_over() -> bool:
            return not await self._list("services") and not self._cloud.list_targets()

        await wait_until(is_over, "all Services and their load balancers are gone")

    async def remove_services(self) -> None:
        """Remove what a failed test has left; the other controllers would take it for theirs."""
        for each in await self._list("services"):
            path = f"{self._services}/{each['metadata']['name']}"
            released = {"metadata": {"finalizers": None}}
            await self._kubelets.request("DELETE", path)
            await self._kubelets.request("PATCH", path, body=released, content_type=MERGE)

    async def _enter(self, phase: Phase) -> None:
        """Change the Nodes, and wait until the controller has seen it."""
        match phase:
            case "Nodes":
                for name, node in NODES.items():
                    provider_id = self._cloud.add_server(name) if node.has_server else node.provider_id
                    body = build_node(name, node, provider_id)
                    await self._kubelets.send("POST", NODE_PATH, body=body)
            case "a Node is drained":
                await self._patch_node("drained-later", {"spec": {"taints": [AUTOSCALER]}})
            case "Nodes leave":
                await self._patch_node("excluded-later", {"metadata": {"labels": {EXCLUDE: "true"}}})
                await self._kubelets.send("DELETE", f"{NODE_PATH}/deleted-later")
        name = f"sees-{PHASES.index(phase)}"
        await self._create(name, {})

        def sees_nodes() -> bool:
            expected = EXPECTED[phase] - self._cloud.unreachable
            return self._cloud.list_targets().get(name) == expected

        await wait_until(sees_nodes, f"the Nodes of the phase: {phase}")

    async def _take_steps(self, case: Case, steps: tuple[Step, ...]) -> None:
        if "create" in steps:
            self._cloud.treat(case, refuses=False)
        for step in steps:
            match step:
                case "create":
                    await self._create(case.name, case.spec, case.annotations)
                case "delete":
                    await self._kubelets.send("DELETE", f"{self._services}/{case.name}")
                case "refuse" | "accept":
                    self._cloud.treat(case, refuses=step == "refuse")
                case Patch(body=body):
                    path = f"{self._services}/{case.name}"
                    await self._kubelets.send("PATCH", path, body=body, content_type=MERGE)
                case _:
                    await self._wait_for(case, step)

    async def _wait_for(self, case: Case, step: Step) -> None:
        async def is_reached() -> bool:
            if isinstance(step, Told):
                return await self._has_event(case.name, step.reason)
            answer = await self._kubelets.request("GET", f"{self._services}/{case.name}")
            service = None if answer.status == HTTPStatus.NOT_FOUND else answer.body
            outcome = build_outcome(service, frozenset(), None)
            match step:
                case "has address":
                    return bool(outcome.ingress)
                case "is released":
                    return not (outcome.finalizers or outcome.ingress)
            return not outcome.exists

        await wait_until(is_reached, f"{case.name}: {step}")

    async def _has_event(self, name: str, reason: str) -> bool:
        return bool(await self._list(f"events?fieldSelector=involvedObject.name={name},reason={reason}"))

    async def _wait_for_events(self, phase: Phase) -> None:
        """Wait for the Events of a new Service: the controller sends them in their order."""
        name = f"told-{PHASES.index(phase)}"
        await self._create(name, {})

        is_told = partial(self._has_event, name, "EnsuredLoadBalancer")
        await wait_until(is_told, f"the Events of the phase: {phase}")

    async def _create(self, name: str, spec: Mapping[str, Any], annotations: Mapping[str, str] = {}) -> None:
        own = {f"{HETZNER}/location": "fsn1", f"{HETZNER}/name": name}
        service = {
            "metadata": {"name": name, "annotations": own | dict(annotations)},
            "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": PORTS, **spec},
        }
        await self._kubelets.send("POST", self._services, body=service)

    async def _list(self, resource: str) -> list[dict[str, Any]]:
        answer = await self._kubelets.send("GET", f"{self._namespace}/{resource}")
        return list(answer["items"])

    async def _patch_node(self, name: str, body: Mapping[str, Any]) -> None:
        await self._kubelets.send("PATCH", f"{NODE_PATH}/{name}", body=body, content_type=MERGE)


async def wait_for_outcomes(run: ConformanceRun, expected: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Return the outcomes of these cases once they are the expected ones, or those at the deadline."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + HANG_SECONDS
    while True:
        found = {name: each for name, each in (await run.list_outcomes()).items() if name in expected}
        if found == expected or clock() > deadline:
            return found
        await asyncio.sleep(0.1)


def build_outcome(
    service: dict[str, Any] | None, events: frozenset[str], targets: frozenset[str] | None
) -> Outcome:
    if service is None:
        return Outcome(exists=False, events=events, targets=targets)
    status = service["status"]
    return Outcome(
        finalizers=tuple(service["metadata"].get("finalizers", ())),
        ingress=tuple(map(describe_ingress, status["loadBalancer"].get("ingress", ()))),
        conditions=tuple(each["type"] for each in status.get("conditions", ())),
        events=events,
        targets=targets,
    )


def describe_ingress(entry: Mapping[str, Any]) -> str:
    """The address itself differs from cloud to cloud."""
    if "hostname" in entry:
        return str(entry["hostname"])
    return f"IPv{ip_address(entry['ip']).version} {entry.get('ipMode', '')}"


def build_node(name: str, node: NodeCase, provider_id: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": node.ready}] if node.ready else []
    return {
        "metadata": {"name": name, "labels": node.labels},
        "spec": {"taints": node.taints} | ({"providerID": provider_id} if provider_id else {}),
        "status": {"conditions": conditions},
    }


@asynccontextmanager
async def conformance_run(
    kubelets: KubeletFleet, controller: Controller, cloud: Cloud
) -> AsyncIterator[ConformanceRun]:
    """A run without Nodes at its beginning, which removes its Nodes at the end."""
    assert not (await kubelets.send("GET", NODE_PATH))["items"]
    await kubelets.send("POST", "/api/v1/namespaces", body={"metadata": {"name": NAMESPACES[controller]}})
    run = ConformanceRun(kubelets, controller, cloud)
    try:
        yield run
    finally:
        await run.remove_services()
        for name in NODES:
            await kubelets.request("DELETE", f"{NODE_PATH}/{name}")
