"""The table of cases, on a real control plane, with the service controller of k8s.io/cloud-provider."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Protocol

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import MERGE, KubeletFleet
from libs.testbed.native_ccm import SERVICE_LB, BalancerTreatment, NativeCcm
from tests.bus_actors import wait_until
from tests.integration.balancer_cases import (
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

NODE_PATH: Final = "/api/v1/nodes"
PORTS: Final = ({"name": "http", "port": 80},)
# The Nodes that are targets of a load balancer that is created in this phase
EXPECTED: Final[Mapping[Phase, frozenset[str]]] = {
    "no Nodes": frozenset(),
    "Nodes": TARGETS,
    "a Node is drained": TARGETS - {"drained-later"},
    "Nodes leave": TARGETS_AT_THE_END,
}


class Cloud(Protocol):
    """The cloud of the controller under test; a Service is `<namespace>/<name>`."""

    def prepare(self, service: str, case: Case) -> None:
        """Treat its load balancer as the case needs."""
        ...

    def set_refusal(self, service: str, case: Case, *, refuses: bool) -> None:
        """Refuse all writes for the Service from now on, as if the quota were used up, or accept them."""
        ...

    def list_targets(self) -> Mapping[str, frozenset[str]]:
        """List the names of the Nodes that are targets, by Service."""
        ...


class NativeCloud:
    """The file that is the cloud of Kubernetes' own controller."""

    def __init__(self, native: NativeCcm) -> None:
        self._native = native

    def prepare(self, service: str, case: Case) -> None:
        self._native.treat_balancer(service, BalancerTreatment(ingress=case.ingress))

    def set_refusal(self, service: str, case: Case, *, refuses: bool) -> None:
        treatment = BalancerTreatment(
            ingress=case.ingress, error="quota exceeded" if refuses else "", retry_seconds=1.0
        )
        self._native.treat_balancer(service, treatment)

    def list_targets(self) -> Mapping[str, frozenset[str]]:
        return {service: frozenset(nodes) for service, nodes in self._native.list_balancers().items()}


class ConformanceRun:
    """The Services of the table in a namespace of their own, and one controller for them."""

    def __init__(self, kubelets: KubeletFleet, cloud: Cloud, namespace: str) -> None:
        self.namespace = namespace
        self._kubelets = kubelets
        self._cloud = cloud
        self._services = f"/api/v1/namespaces/{namespace}/services"

    async def take_phase(self, phase: Phase) -> dict[str, Outcome]:
        """Change the Nodes, take all steps of the phase, and return the outcomes of its cases."""
        await self._enter(phase)
        following = PHASES[PHASES.index(phase) + 1 :][:1]
        async with asyncio.TaskGroup() as group:
            for case in CASES:
                if case.phase == phase:
                    group.create_task(self._take_steps(case, case.steps))
                elif case.phase in following:
                    group.create_task(self._take_steps(case, case.earlier))
        await self._wait_for_events(phase)
        expected = {case.name: case.outcome for case in CASES if case.phase == phase}
        return await wait_for_outcomes(self, expected)

    async def list_outcomes(self) -> dict[str, Outcome]:
        """Return the outcome of each case that has begun."""
        targets = self._cloud.list_targets()
        services = {each["metadata"]["name"]: each for each in await self._list("services")}
        events: dict[str, set[str]] = {}
        for each in await self._list("events"):
            told = events.setdefault(each["involvedObject"]["name"], set())
            told.add(f"{each['type']} {each['reason']}")
        return {
            case.name: build_outcome(
                services.get(case.name),
                frozenset(events.get(case.name, ())),
                targets.get(f"{self.namespace}/{case.name}"),
            )
            for case in CASES
        }

    async def end(self) -> None:
        """Delete all Services, and wait until nothing of them is left in the cloud."""
        for case in CASES:
            self._cloud.set_refusal(f"{self.namespace}/{case.name}", case, refuses=False)
        for each in await self._list("services"):
            path = f"{self._services}/{each['metadata']['name']}"
            # a change ends the pause after a refusal
            touched = {"metadata": {"annotations": {"touched": "by the test"}}}
            await self._kubelets.send("PATCH", path, body=touched, content_type=MERGE)
            await self._kubelets.send("DELETE", path)

        async def is_over() -> bool:
            return not await self._list("services") and not self._cloud.list_targets()

        await wait_until(is_over, "all Services and their load balancers are gone")

    async def _enter(self, phase: Phase) -> None:
        """Change the Nodes, and wait until the controller has seen it."""
        match phase:
            case "Nodes":
                for name, node in NODES.items():
                    await self._kubelets.send("POST", NODE_PATH, body=build_node(name, node))
            case "a Node is drained":
                await self._patch_node("drained-later", {"spec": {"taints": [AUTOSCALER]}})
            case "Nodes leave":
                await self._patch_node("excluded-later", {"metadata": {"labels": {EXCLUDE: "true"}}})
                await self._kubelets.send("DELETE", f"{NODE_PATH}/deleted-later")
        name = f"sees-{PHASES.index(phase)}"
        await self._create(name, {})

        def sees_nodes() -> bool:
            return self._cloud.list_targets().get(f"{self.namespace}/{name}") == EXPECTED[phase]

        await wait_until(sees_nodes, f"the Nodes of the phase: {phase}")

    async def _take_steps(self, case: Case, steps: tuple[Step, ...]) -> None:
        service = f"{self.namespace}/{case.name}"
        if steps[:1] == ("create",):
            self._cloud.prepare(service, case)
        for step in steps:
            match step:
                case "create":
                    await self._create(case.name, case.spec, case.annotations)
                case "delete":
                    await self._kubelets.send("DELETE", f"{self._services}/{case.name}")
                case "refuse" | "accept":
                    self._cloud.set_refusal(service, case, refuses=step == "refuse")
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
        service = {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": PORTS, **spec},
        }
        await self._kubelets.send("POST", self._services, body=service)

    async def _list(self, resource: str) -> list[dict[str, Any]]:
        answer = await self._kubelets.send("GET", f"/api/v1/namespaces/{self.namespace}/{resource}")
        return list(answer["items"])

    async def _patch_node(self, name: str, body: Mapping[str, Any]) -> None:
        await self._kubelets.send("PATCH", f"{NODE_PATH}/{name}", body=body, content_type=MERGE)


async def wait_for_outcomes(run: ConformanceRun, expected: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Return the outcomes of these cases once they are the expected ones, or those at the deadline."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + 10
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


def build_node(name: str, node: NodeCase) -> dict[str, Any]:
    provider_id = f"hcloud://{list(NODES).index(name) + 1}" if node.has_server else node.provider_id
    conditions = [{"type": "Ready", "status": node.ready}] if node.ready else []
    return {
        "metadata": {"name": name, "labels": node.labels},
        "spec": {"taints": node.taints} | ({"providerID": provider_id} if provider_id else {}),
        "status": {"conditions": conditions},
    }


@asynccontextmanager
async def conformance_run(
    kubelets: KubeletFleet, cloud: Cloud, namespace: str
) -> AsyncIterator[ConformanceRun]:
    """A run without Nodes at its beginning, which removes its Nodes at the end."""
    assert not (await kubelets.send("GET", NODE_PATH))["items"]
    await kubelets.send("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    try:
        yield ConformanceRun(kubelets, cloud, namespace)
    finally:
        for name in NODES:
            await kubelets.request("DELETE", f"{NODE_PATH}/{name}")


async def test_the_table_has_what_kubernetes_own_controller_does(
    control_plane: ControlPlane, kubelets: KubeletFleet, tmp_path: Path
):
    async with (
        NativeCcm.start(tmp_path, control_plane, scheme="hcloud", controllers=[SERVICE_LB]) as native,
        conformance_run(kubelets, NativeCloud(native), "lb-native") as run,
    ):
        for phase in PHASES:
            expected = {case.name: case.outcome for case in CASES if case.phase == phase}
            assert await run.take_phase(phase) == expected
        await run.end()
