"""From the reference controller to ours and back: one Lease, no gap, and no write happens twice."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from nats.js.errors import NotFoundError

from libs.common.contract.node import UNINITIALIZED_TAINT
from libs.common.contract.subjects import LEADING, STREAM
from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.service.leader_elector import LeaderElector
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import JSON_PATCH, STRATEGIC, KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts, make_machine
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_permissions import ALL_IN_ONE
from libs.testbed.service_processes import ServiceProcesses
from libs.testbed.signing_requests import CSRS
from services.watcher.settings import WatcherSettings
from tests.bus_actors import run_during, wait_until
from tests.integration.conftest import operating
from tests.integration.test_all_in_one import LEASE
from tests.service_flow import make_dependencies

LEASE_SECONDS: Final = 15  # the default of both
LOOKS: Final = 3  # at a Lease that is held, before what was not written counts as not written
A_JOIN: Final = {
    ("patch", "nodes", ""): 1,
    ("patch", "nodes/status", ""): 1,
    ("create", "events", "Synced"): 1,
}
AN_APPROVAL: Final = {("patch", "certificatesigningrequests/approval", ""): 1}
WRITES: Final = ("create", "update", "patch", "delete")
RECORD: Final = ("metadata.annotations[node.cloudprovider.", "metadata.labels[talos-ccm.node-restriction.")
EXTERNAL: Final = "203.0.113.1"


class Reference:
    """What holds the reference's Lease, and initialises a Node with the fields that the reference writes."""

    def __init__(self, api: KubeApi, kubelets: KubeletFleet) -> None:
        self.api = api
        self.kubelets = kubelets
        self.holds = asyncio.Event()
        no_bus: Any = None
        self.elector = LeaderElector(
            api,
            WatcherSettings(retry_period_seconds=0.5),
            make_dependencies(no_bus, identity="talos-cp-1_reference"),
            set_gauge=lambda held: self.holds.set() if held else self.holds.clear(),
        )

    async def lead(self) -> None:
        """Acquire the Lease as soon as possible, and renew it; cancelling this does not release it."""
        await self.elector.acquire()
        await self.elector.renew()

    async def initialise(self, machine: SimMachineFacts) -> None:
        """Its providerID, labels and addresses, and no taint."""
        path, platform = f"/api/v1/nodes/{machine.name}", machine.platform
        assert platform is not None
        labels = {"node.cloudprovider.kubernetes.io~1platform": platform.platform}
        labels["topology.kubernetes.io~1region"] = platform.region
        operations: list[dict[str, Any]] = [
            {"op": "add", "path": f"/metadata/labels/{key}", "value": value} for key, value in labels.items()
        ]
        operations += [
            {"op": "add", "path": "/spec/providerID", "value": platform.provider_id},
            {"op": "replace", "path": "/spec/taints", "value": []},
        ]
        told_of = {"InternalIP": machine.reachable_at[0], "ExternalIP": EXTERNAL, "Hostname": machine.name}
        status = {"status": {"addresses": [{"type": kind, "address": told_of[kind]} for kind in told_of]}}
        for at, body, kind in ((f"{path}/status", status, STRATEGIC), (path, operations, JSON_PATCH)):
            answer = await self.kubelets.request("PATCH", at, body=body, content_type=kind)
            assert answer.status == 200, answer


@asynccontextmanager
async def reference_of(control_plane: ControlPlane, kubelets: KubeletFleet) -> AsyncIterator[Reference]:
    """The reference, without a Lease at the beginning and at the end."""
    await kubelets.request("DELETE", LEASE)
    api = KubeApi(load_kube_config(control_plane.kubeconfig(), {}), user_agent="reference")
    try:
        yield Reference(api, kubelets)
    finally:
        await kubelets.request("DELETE", LEASE)
        await api.close()


def machine(name: str, number: int) -> SimMachineFacts:
    return make_machine(
        name, f"10.232.0.{number}", platform="hcloud", region="eu-central", external_ips=[EXTERNAL]
    )


def written(control_plane: ControlPlane, since: int) -> Counter[tuple[str, str]]:
    """Return the write requests of our process, by verb and resource."""
    counts: Counter[tuple[str, str]] = Counter()
    for request, count in control_plane.audit_counts(since).items():
        if request.user.startswith(ALL_IN_ONE) and request.verb in WRITES:
            counts[request.verb, request.resource] += count
    return counts


async def looks_at_the_lease(control_plane: ControlPlane) -> None:
    """Return when our process has queried the Lease several times: by then it would have written."""
    since = control_plane.audit_mark()

    def has_queried() -> bool:
        queried = {
            r: n for r, n in control_plane.audit_counts(since).items() if r.user.startswith(ALL_IN_ONE)
        }
        return sum(n for r, n in queried.items() if (r.verb, r.resource) == ("get", "leases")) >= LOOKS

    await wait_until(has_queried, "our process queries the Lease of the other one")


async def is_initialised(kubelets: KubeletFleet, name: str) -> bool:
    node = (await kubelets.request("GET", f"/api/v1/nodes/{name}")).body
    return UNINITIALIZED_TAINT not in {taint["key"] for taint in node["spec"].get("taints", [])}


async def is_silent(server: NatsServer) -> bool:
    """Whether there is no leader heartbeat; the last one counts for ten seconds."""
    async with operating(server) as operator:
        try:
            await operator.get_last_msg(STREAM, LEADING)
        except NotFoundError:
            return True
    return False


async def seconds_between_renewal_and_takeover(kubelets: KubeletFleet, renewed: str) -> float:
    taken = (await kubelets.request("GET", LEASE)).body["spec"]
    assert taken["leaseTransitions"] >= 1
    then, now = (datetime.fromisoformat(text) for text in (renewed, taken["acquireTime"]))
    return (now - then).total_seconds()


async def test_ours_writes_nothing_beside_the_reference_takes_over_within_a_lease_and_gives_back_at_once(
    control_plane: ControlPlane, tmp_path: Path, machines: MachineFleet, nats_server: NatsServer
):
    names = ("done-by-it", "left-over", "after-it", "back-again")
    there = [machine(name, n) for n, name in enumerate(names, 1)]
    done, left, after, back = there
    async with AsyncExitStack() as stack:
        kubelets = await stack.enter_async_context(KubeletFleet.start(control_plane))
        reference = await stack.enter_async_context(reference_of(control_plane, kubelets))
        await machines.put_machines(*there)
        stack.push_async_callback(machines.delete_machines, *(each.id for each in there))
        since = control_plane.audit_mark()
        async with run_during(reference.lead()):
            await asyncio.wait_for(reference.holds.wait(), HANG_SECONDS)
            services = await stack.enter_async_context(
                ServiceProcesses.start(
                    tmp_path / "services", control_plane, kubelets,
                    nats_url=nats_server.url, talosconfig=machines.write_talosconfig(),
                )
            )  # fmt: skip
            leader = services.children["watcher"]
            standing_by = "standing by, another replica leads"
            await wait_until(lambda: standing_by in leader.log.read_text(), "ours stands by")
            await kubelets.join(SimKubelet.of_machine(done))
            await reference.initialise(done)
            await kubelets.join(SimKubelet.of_machine(left))  # the reference ends before it comes to this one
            certificate = await kubelets.request_certificate(SimKubelet.of_machine(left))
            await looks_at_the_lease(control_plane)
            assert not written(control_plane, since)
        renewed = (await kubelets.request("GET", LEASE)).body["spec"]["renewTime"]

        await wait_until(lambda: is_initialised(kubelets, left.name), "ours goes on")
        assert await seconds_between_renewal_and_takeover(kubelets, renewed) < 2 * LEASE_SECONDS
        assert (await kubelets.wait_for_outcome(certificate)).certificate
        await kubelets.join(SimKubelet.of_machine(after))
        await wait_until(lambda: is_initialised(kubelets, after.name), "and with the next one")
        for each in (left, after):
            await wait_until(
                lambda n=each.name: writes_of(control_plane, since, n) == A_JOIN,  # type: ignore[misc]
                "the Event comes last",
            )
        assert writes_of(control_plane, since, certificate) == AN_APPROVAL
        what_the_reference_wrote_stays(control_plane, done.name)

        reference = Reference(reference.api, kubelets)
        async with run_during(reference.lead()):
            await wait_until(lambda: not reference.elector.problems(), "the reference knows the holder")
            assert not reference.holds.is_set()
            for child in services.children.values():
                await child.stop(30)
            began = datetime.now(UTC)
            await asyncio.wait_for(reference.holds.wait(), LEASE_SECONDS)
            assert (datetime.now(UTC) - began).total_seconds() < LEASE_SECONDS - 5  # released, not outlived
            await wait_until(
                lambda: is_silent(nats_server), "a process that received our last write may write"
            )
            since = control_plane.audit_mark()
            for name in list(services.children):
                services.restart(name)
            await kubelets.join(SimKubelet.of_machine(back))
            await looks_at_the_lease(control_plane)
            assert not written(control_plane, since)
            assert not await is_initialised(kubelets, back.name)
            await asyncio.gather(*(child.stop(30) for child in services.children.values()))
            assert not written(control_plane, since)  # who never led releases nothing
        for each in there:
            await kubelets.delete_node(each.name)
        await kubelets.request("DELETE", f"{CSRS}/{certificate}")


def writes_of(control_plane: ControlPlane, since: int, about: str) -> Counter[tuple[str, str, str]]:
    mine = [each for each in control_plane.list_node_writes(since) if each.user.startswith(ALL_IN_ONE)]
    assert all(each.code < 300 for each in mine), mine
    return Counter(
        (each.verb, each.resource, each.body["reason"] if each.resource == "events" else "")
        for each in mine
        if each.about == about
    )


def what_the_reference_wrote_stays(control_plane: ControlPlane, node: str) -> None:
    """Ours adds what the reference had not written, and its record; it changes nothing."""
    changes = [change for change in control_plane.list_node_changes() if change.node == node]
    by_reference = {change.field for change in changes if change.user == "admin"}
    by_ours = {change.field for change in changes if change.user.startswith(ALL_IN_ONE)}
    assert {"spec.providerID", "status.addresses"} <= by_reference
    assert any(field.startswith(RECORD) for field in by_ours)
    assert not by_ours & by_reference
