"""Carries out the plan of a workload against a cluster, and repeats what an outage prevents."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from libs.testbed.kubelets import MERGE, RequestRejected, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, Member, SimMachineFacts
from tests.chaos.cluster import ChaosCluster, write_rules
from tests.chaos.expectation import Expectation
from tests.chaos.history import read_node
from tests.chaos.request_filer import RequestFiler, persist
from tests.chaos.workload import (
    CONTROL_PLANE,
    LAST_NODE,
    Act,
    Step,
    Workload,
    make_replacement,
    move_external_address,
)


class Fleet:
    """Starts and stops machines. The control plane machine knows all that have started and not left."""

    def __init__(self, machines: MachineFleet) -> None:
        self._machines = machines
        self._running: dict[str, SimMachineFacts] = {}
        self._members: set[str] = set()
        self._lock = asyncio.Lock()  # workload and faults change machines at the same time

    def get(self, name: str) -> SimMachineFacts:
        """The facts of a running machine. Raises KeyError."""
        return self._running[name]

    async def start(self, machine: SimMachineFacts) -> None:
        """Start the machine, or replace its facts; it takes over addresses of others."""
        async with self._lock:
            self._running[machine.name] = machine
            self._members.add(machine.name)
            await self._put(machine)

    async def silence(self, name: str) -> None:
        """Stop a machine that discovery still knows."""
        async with self._lock:
            self._running.pop(name, None)
            await self._machines.delete_machines(name)

    async def remove(self, name: str) -> None:
        """Stop a machine for good, or until it starts again: discovery forgets it."""
        async with self._lock:
            self._members.discard(name)
            if self._running.pop(name, None):
                await self._machines.delete_machines(name)
            await self._put(self._running[CONTROL_PLANE])

    async def run_unknown(self, machine: SimMachineFacts) -> None:
        """Start a machine that is no member of this cluster."""
        async with self._lock:
            await self._machines.put_machines(machine)

    async def stop_unknown(self, machine: SimMachineFacts, original: str) -> None:
        """Stop it, and give its address back to the original machine if that still runs."""
        async with self._lock:
            await self._machines.delete_machines(machine.id)
            if original in self._running:
                await self._put(self._running[original])

    async def _put(self, machine: SimMachineFacts) -> None:
        """Put the machine, and the control plane machine with the present members once that runs."""
        changed = {machine.id: machine}
        if CONTROL_PLANE in self._running:
            members = tuple(Member(name=name) for name in sorted(self._members))
            head = msgspec.structs.replace(self._running[CONTROL_PLANE], members=members)
            self._running[CONTROL_PLANE] = changed[CONTROL_PLANE] = head
        await self._machines.put_machines(*changed.values())


class WorkloadRunner:
    """One run of a workload. `expectation` is complete once `run` and `join_last` have returned."""

    def __init__(self, cluster: ChaosCluster, workload: Workload) -> None:
        self.fleet = Fleet(cluster.machines)
        self._cluster = cluster
        self._workload = workload
        self._begun = time.monotonic()
        self._filer = RequestFiler(cluster.kubelets, self._list_ips)
        self._joined: set[str] = set()
        self._left: set[str] = set()
        self._silent: set[str] = set()
        self._replaced: set[str] = set()
        self._operated: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # one writer for each Node
        self._acts: dict[Act, Callable[[str], Awaitable[None]]] = {
            "join": self._join,
            "leave": self._leave,
            "move-address": self._move_address,
            "request-certificate": self._filer.request_certificate,
            "forge-requests": self._forge_requests,
            "write-operator-keys": self._write_operator_keys,
            "go-silent": self._go_silent,
            "come-back": self._come_back,
            "be-replaced": self._be_replaced,
        }

    @property
    def expectation(self) -> Expectation:
        """What this run has done so far allows and requires."""
        return Expectation(
            legitimate=frozenset(self._filer.legitimate),
            required=frozenset(self._filer.required.values()),
            untouched=frozenset(self._filer.untouched),
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
        await self._filer.request_certificate(LAST_NODE)
        await self._wait_until_usable(LAST_NODE)
        await self._filer.wait_until_issued(LAST_NODE)

    async def write_again(self) -> None:
        """Write what etcd has lost: a kubelet that restarts joins, an operator repeats what is missing."""
        async with asyncio.TaskGroup() as group:
            for name in self._workload.machines.keys() | self._joined:
                group.create_task(self._write_node_again(name))

    async def _write_node_again(self, name: str) -> None:
        async with self._locks[name]:
            if name in self._left:
                await self._delete(name)
            if name in self._replaced:
                await self._set_unreachable(name)
            if name not in self._joined:
                return
            await self._register(name)
            if name in self._silent:
                await self._set_unreachable(name)
            if name in self._operated:
                await self._write_operator_keys(name)
            await self._filer.request_lost_certificate(name)

    async def _run_steps(self, name: str, steps: tuple[Step, ...]) -> None:
        for step in steps:
            await asyncio.sleep(self._begun + step.at - time.monotonic())
            if step.act == "wait-until-usable":  # writes nothing
                await self._wait_until_usable(name)
                continue
            async with self._locks[name]:
                await self._acts[step.act](name)

    async def _change_rules(self) -> None:
        for revision, at in enumerate(self._workload.rule_changes, 1):
            await asyncio.sleep(self._begun + at - time.monotonic())
            write_rules(self._cluster.rules_file, revision)

    def _make_kubelet(self, name: str) -> SimKubelet:
        keys = self._workload.operator_keys.get(name)
        machine = self._workload.machines[name] if name in self._silent else self.fleet.get(name)
        return SimKubelet.of_machine(machine, taints=keys.taints if keys else ())

    async def _join(self, name: str) -> None:
        machine = self._workload.machines.get(name)
        if machine is not None:
            await self.fleet.start(machine)
        self._left.discard(name)
        self._joined.add(name)
        await self._register(name)

    async def _register(self, name: str) -> None:
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
        self._filer.required.pop(name, None)
        self._joined.discard(name)
        self._left.add(name)
        await self.fleet.remove(name)
        await self._delete(name)

    async def _delete(self, name: str) -> None:
        await persist(f"{name} leaves", lambda: self._cluster.kubelets.delete_node(name))

    async def _move_address(self, name: str) -> None:
        await self.fleet.start(move_external_address(self._workload.machines[name]))

    async def _forge_requests(self, name: str) -> None:
        await self._filer.forge_requests(name, next(each for each in self._workload.steps if each != name))

    def _list_ips(self, name: str) -> Sequence[str]:
        machine = self._workload.machines.get(name)
        return (machine or self.fleet.get(name)).reachable_at

    async def _write_operator_keys(self, name: str) -> None:
        keys = self._workload.operator_keys[name]
        self._operated.add(name)
        await self._patch(name, {"labels": dict(keys.labels), "annotations": dict(keys.annotations)})

    async def _patch(self, name: str, metadata: dict[str, Any]) -> None:
        path, body = f"/api/v1/nodes/{name}", {"metadata": metadata}
        await persist(
            f"an operator patches {name}",
            lambda: self._cluster.kubelets.send("PATCH", path, body=body, content_type=MERGE),
        )

    async def _wait_until_usable(self, name: str) -> None:
        async def check() -> None:
            node = read_node(await self._cluster.kubelets.send("GET", f"/api/v1/nodes/{name}"))
            if not (node.is_initialized and node.pod_cidrs):
                raise TimeoutError(f"{name} is not usable yet")

        await persist(f"{name} becomes usable", check)

    async def _go_silent(self, name: str) -> None:
        self._silent.add(name)
        await self.fleet.silence(name)
        await persist(f"{name} unreachable", lambda: self._cluster.kubelets.set_unreachable(name))

    async def _come_back(self, name: str) -> None:
        await self.fleet.start(self._workload.machines[name])
        self._silent.discard(name)
        await persist(f"{name} ready", lambda: self._cluster.kubelets.set_ready(name))

    async def _be_replaced(self, name: str) -> None:
        """Another machine is installed at the address: proof that lifecycle may delete the Node."""
        self._filer.required.pop(name, None)
        self._joined.discard(name)
        self._replaced.add(name)
        replacement = make_replacement(self._workload.machines[name])
        await self.fleet.remove(name)
        await self.fleet.start(replacement)
        await self._join(replacement.name)
        await self._set_unreachable(name)

    async def _set_unreachable(self, name: str) -> None:
        async def set_unreachable() -> None:
            try:
                await self._cluster.kubelets.set_unreachable(name)
            except RequestRejected as rejected:
                if rejected.response.status != 404:  # lifecycle has deleted it
                    raise

        await persist(f"{name} unreachable", set_unreachable)
