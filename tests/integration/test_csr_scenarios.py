"""Requests that come too early, during an outage, while our processes end, and too many: on real parts."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts, make_machine
from libs.testbed.service_processes import ServiceProcesses
from libs.testbed.signing_requests import CSRS, SigningOutcome, read_outcome
from services.csr.on_csr_enriched import RETRY_SECONDS
from tests.bus_actors import wait_until
from tests.integration.conftest import StartServices
from tests.integration.csr_cluster import all_still_ready, names_in, pids_of, state_of, until_said

ALL_IN_ONE = "all-in-one"
ALONE = "--controllers=node-csr-approval"
WITHIN_SECONDS = RETRY_SECONDS / 2  # no wait lasts until it is looked at again for safety's sake
MANY = 200
_numbers = itertools.count(1)


def some_machines(count: int) -> list[SimMachineFacts]:
    return [
        make_machine(f"early-{n}", f"10.222.{n // 250}.{n % 250 + 1}")
        for n in itertools.islice(_numbers, count)
    ]


@pytest.fixture
async def in_one(start_services: StartServices) -> ServiceProcesses:
    """Our processes as one, with messages in memory, and certificates as their only work."""
    return await start_services(all_in_one=True, bus="memory", flags=[ALONE])


@pytest.fixture
async def clean_up(
    kubelets: KubeletFleet, machines: MachineFleet
) -> AsyncIterator[Callable[[SimMachineFacts], None]]:
    """Machines, their Nodes and their requests are gone at the end."""
    ended: list[SimMachineFacts] = []
    yield ended.append
    for machine in ended:
        await kubelets.delete_node(machine.name)
    await machines.delete_machines(*(machine.id for machine in ended))
    for request in await all_requests(kubelets):
        await kubelets.request("DELETE", f"{CSRS}/{request}")


@pytest.fixture
def put(
    machines: MachineFleet, clean_up: Callable[[SimMachineFacts], None]
) -> Callable[..., Awaitable[list[SimKubelet]]]:
    """Machines run; their kubelets have not joined."""

    async def putting(*some: SimMachineFacts) -> list[SimKubelet]:
        await machines.put_machines(*some)
        for machine in some:
            clean_up(machine)
        return [SimKubelet.of_machine(machine) for machine in some]

    return putting


async def all_requests(kubelets: KubeletFleet) -> dict[str, SigningOutcome]:
    """The outcome of each existing request by name."""
    items = (await kubelets.request("GET", CSRS)).body["items"]
    return {item["metadata"]["name"]: read_outcome(item) for item in items}


async def issued(kubelets: KubeletFleet, kubelet: SimKubelet, name: str, seconds: float = 60.0) -> None:
    """The request ends in a certificate for what the kubelet is."""
    outcome = await kubelets.wait_for_outcome(name, seconds=seconds)
    assert outcome.certificate, outcome
    assert names_in(outcome) == ([kubelet.name], list(kubelet.ips))


def approvals(control_plane: ControlPlane, since: int) -> int:
    """How many approvals and denials our processes have asked for."""
    return sum(
        count
        for request, count in control_plane.audit_counts(since).items()
        if request.user.startswith("talos-ccm") and request.resource == "certificatesigningrequests/approval"
    )


def are_known(services: ServiceProcesses, names: list[str]) -> bool:
    """Whether the log mentions each of these requests."""
    text = services.children[ALL_IN_ONE].log.read_text()
    return all(name in text for name in names)


async def test_requests_during_an_outage_of_talos_are_issued_2_s_after_their_machines_are_heard(
    in_one: ServiceProcesses, kubelets: KubeletFleet, machines: MachineFleet, put
):
    known, *asking = await put(*some_machines(6))
    await kubelets.join(known)
    await issued(kubelets, known, await kubelets.request_certificate(known))
    await machines.cut_endpoint(0)
    try:
        await kubelets.join_all(asking)
        names = [await kubelets.request_certificate(kubelet) for kubelet in asking]
        for name in names:
            await until_said(in_one, ALL_IN_ONE, name, "outcome=waiting", "unreachable")
        assert not any([(await state_of(kubelets, name)).conditions for name in names])
        assert "cannot query Talos" in await in_one.fetch_page(ALL_IN_ONE, "/readyz?verbose")
    finally:
        await machines.restore_endpoint(0)

    async def issued_once_it_is_heard(kubelet: SimKubelet, name: str) -> None:
        await until_said(in_one, ALL_IN_ONE, "event=NodeEnriched", f"node={kubelet.name} ")
        await issued(kubelets, kubelet, name, seconds=WITHIN_SECONDS)

    pairs = zip(asking, names, strict=True)
    await asyncio.gather(*(issued_once_it_is_heard(*pair) for pair in pairs))


async def test_requests_are_issued_once_each_while_csr_and_metadata_are_killed_in_between(
    start_services: StartServices, control_plane: ControlPlane, kubelets: KubeletFleet, put
):
    services = await start_services()
    since = control_plane.audit_mark()
    names: dict[str, SimKubelet] = {}
    for killed in (("csr",), ("metadata",), ("csr", "metadata")):
        early, late = await put(*some_machines(2))
        await kubelets.join(late)
        early_one = await kubelets.request_certificate(early)
        await until_said(services, "csr", early_one, "there is no Node")
        for name in killed:
            await services.children[name].kill()
        late_one = await kubelets.request_certificate(late)
        await kubelets.join(early)
        for name in killed:
            services.restart(name)
        names |= {early_one: early, late_one: late}
        await asyncio.gather(*(issued(kubelets, names[name], name) for name in (early_one, late_one)))
    await services.wait_until_ready()
    assert approvals(control_plane, since) == len(names)


async def test_of_200_nodes_that_ask_twice_before_they_exist_the_newest_is_issued_and_no_older_one_written(
    in_one: ServiceProcesses, control_plane: ControlPlane, kubelets: KubeletFleet, put
):
    pids = pids_of(in_one)
    asking = await put(*some_machines(MANY))
    since = control_plane.audit_mark()
    older = await asyncio.gather(*(kubelets.request_certificate(kubelet) for kubelet in asking))
    newer = await asyncio.gather(*(kubelets.request_certificate(kubelet) for kubelet in asking))
    # Two watches: a Node that comes before its newer request has the older one issued, and rightly so.
    await wait_until(lambda: are_known(in_one, newer), "the newest are known", 90)
    await kubelets.join_all(asking)

    async def all_issued() -> bool:
        found = await all_requests(kubelets)
        return all(found[name].certificate for name in newer)

    await wait_until(all_issued, "the newest requests are issued", 90)
    found = await all_requests(kubelets)
    assert [names_in(found[name]) for name in newer] == [([one.name], list(one.ips)) for one in asking]
    assert not any(found[name].conditions for name in older)
    assert approvals(control_plane, since) == MANY
    await all_still_ready(in_one, pids)
