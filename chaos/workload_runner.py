"""Carries out the plan of a workload against a cluster, and repeats what an outage prevents."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from chaos.cluster import ChaosCluster, write_rules
from chaos.expectation import Expectation
from chaos.fleet import Fleet
from chaos.history import digest_request, read_node, read_signing_request
from chaos.persist import persist
from chaos.workload import LAST_NODE, Act, Step, Workload, make_replacement, move_external_address
from libs.common.contract.signing_request import KUBELET_SERVING, NODE_USER_PREFIX
from libs.testbed.kubelets import MERGE, RequestRejected, SimKubelet
from libs.testbed.signing_requests import CSRS, SERVING_USAGES, build_signing_request, make_request_pem

_FOREIGN_SIGNER: Final = "example.com/another-signer"


class WorkloadRunner:
    """One run of a workload. `expectation` is complete once `run` and `join_last` have returned."""

    def __init__(self, cluster: ChaosCluster, workload: Workload) -> None:
        self.fleet = Fleet(cluster.machines)
        self._cluster = cluster
        self._workload = workload
        self._begun = time.monotonic()
        self._legitimate: set[str] = set()
        self._required: dict[str, str] = {}  # the newest request of each Node that stays
        self._untouched: set[str] = set()
        self._acts: dict[Act, Callable[[str], Awaitable[None]]] = {
            "join": self._join,
            "leave": self._leave,
            "move-address": self._move_address,
            "request-certificate": self._request_certificate,
            "forge-requests": self._forge_requests,
            "write-operator-keys": self._write_operator_keys,
            "wait-until-usable": self._wait_until_usable,
            "go-silent": self._go_silent,
            "come-back": self._come_back,
            "be-replaced": self._be_replaced,
        }

    @property
    def expectation(self) -> Expectation:
        """What this run has done so far allows and requires."""
        return Expectation(
            legitimate=frozenset(self._legitimate),
            required=frozenset(self._required.values()),
            untouched=frozenset(self._untouched),
            operator_keys=self._workload.operator_keys,
            deletable=self._workload.replaced,
            moving=self._workload.moving,
        )

    async def run(self) -> None:
        """Carry out all steps. Raises TimeoutError if a step cannot be carried out."""
        self._begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._change_rules())
            for name, steps in self._workload.steps.items():
                group.create_task(self._run_steps(name, steps))

    async def join_last(self) -> None:
        """The last node joins, becomes usable and gets its certificate. Raises TimeoutError."""
        await self._join(LAST_NODE)
        await self._request_certificate(LAST_NODE)
        await self._wait_until_usable(LAST_NODE)
        digest = self._required[LAST_NODE]

        async def check() -> None:
            answer = await self._cluster.kubelets.request("GET", CSRS)
            if answer.status != 200:
                raise RequestRejected("list of requests", answer)
            if not any(
                each.is_issued and each.digest == digest
                for each in map(read_signing_request, answer.body["items"])
            ):
                raise TimeoutError(f"the request of {LAST_NODE} is not issued yet")

        await persist(f"{LAST_NODE} gets its certificate", check)

    async def _run_steps(self, name: str, steps: tuple[Step, ...]) -> None:
        for step in steps:
            await asyncio.sleep(self._begun + step.at - time.monotonic())
            await self._acts[step.act](name)

    async def _change_rules(self) -> None:
        for revision, at in enumerate(self._workload.rule_changes, 1):
            await asyncio.sleep(self._begun + at - time.monotonic())
            write_rules(self._cluster.rules_file, revision)

    def _make_kubelet(self, name: str) -> SimKubelet:
        keys = self._workload.operator_keys.get(name)
        return SimKubelet.of_machine(self.fleet.get(name), taints=keys.taints if keys else ())

    async def _join(self, name: str) -> None:
        machine = self._workload.machines.get(name)
        if machine is not None:
            await self.fleet.start(machine)
        kubelet, kubelets = self._make_kubelet(name), self._cluster.kubelets

        async def join() -> None:
            try:
                await kubelets.join(kubelet)
            except RequestRejected as rejected:
                if rejected.response.status != 409:  # the answer to the first attempt was lost
                    raise
                await kubelets.set_ready(name)

        await persist(f"{name} joins", join)

    async def _leave(self, name: str) -> None:
        self._required.pop(name, None)
        await self.fleet.remove(name)
        await persist(f"{name} leaves", lambda: self._cluster.kubelets.delete_node(name))

    async def _move_address(self, name: str) -> None:
        await self.fleet.start(move_external_address(self._workload.machines[name]))

    async def _request_certificate(self, name: str) -> None:
        digest = await self._file_request(name, name)
        self._required[name] = digest

    async def _file_request(self, name: str, of: str, *, dns: str = "", signer: str = KUBELET_SERVING) -> str:
        """File a request of node `name` for the names of node `of`; return its digest."""
        user = f"{NODE_USER_PREFIX}{name}"
        ips = self._workload.machines.get(of, self.fleet.get(name)).reachable_at
        pem = make_request_pem(common_name=user, dns=[dns or of], ips=ips)
        body = build_signing_request(pem, usages=SERVING_USAGES, expiration_seconds=None, signer=signer)
        digest = digest_request(body["spec"]["request"])
        if signer != KUBELET_SERVING:
            self._untouched.add(digest)
        elif name == of and not dns:
            self._legitimate.add(digest)

        async def file() -> None:
            await self._cluster.kubelets.file_request(pem, user=user, signer=signer)

        await persist(f"{name} requests a certificate", file)
        return digest

    async def _forge_requests(self, name: str) -> None:
        """Requests that csr must not approve, by an attacker with a real node's identity."""
        victim = next(each for each in self._workload.steps if each != name)
        await self._file_request(name, victim)
        await self._file_request(name, name, dns="vault.internal.example")
        await self._file_request(name, name, signer=_FOREIGN_SIGNER)

    async def _write_operator_keys(self, name: str) -> None:
        keys = self._workload.operator_keys[name]
        await self._patch(name, {"labels": dict(keys.labels), "annotations": dict(keys.annotations)})

    async def _patch(self, name: str, metadata: dict[str, Any]) -> None:
        async def patch() -> None:
            answer = await self._cluster.kubelets.request(
                "PATCH", f"/api/v1/nodes/{name}", body={"metadata": metadata}, content_type=MERGE
            )
            if answer.status != 200:
                raise RequestRejected(f"patch of {name}", answer)

        await persist(f"an operator patches {name}", patch)

    async def _wait_until_usable(self, name: str) -> None:
        async def check() -> None:
            answer = await self._cluster.kubelets.request("GET", f"/api/v1/nodes/{name}")
            if answer.status != 200:
                raise RequestRejected(f"get {name}", answer)
            node = read_node(answer.body)
            if not (node.is_initialized and node.pod_cidrs):
                raise TimeoutError(f"{name} is not usable yet")

        await persist(f"{name} becomes usable", check)

    async def _go_silent(self, name: str) -> None:
        await self.fleet.silence(name)
        await persist(f"{name} unreachable", lambda: self._cluster.kubelets.set_unreachable(name))

    async def _come_back(self, name: str) -> None:
        await self.fleet.start(self._workload.machines[name])
        await persist(f"{name} ready", lambda: self._cluster.kubelets.set_ready(name))

    async def _be_replaced(self, name: str) -> None:
        """Another machine is installed at the address: proof that lifecycle may delete the Node."""
        self._required.pop(name, None)
        replacement = make_replacement(self._workload.machines[name])
        await self.fleet.remove(name)
        await self.fleet.start(replacement)
        await self._join(replacement.name)

        async def set_unreachable() -> None:
            try:
                await self._cluster.kubelets.set_unreachable(name)
            except RequestRejected as rejected:
                if rejected.response.status != 404:  # lifecycle has deleted it
                    raise

        await persist(f"{name} unreachable", set_unreachable)
