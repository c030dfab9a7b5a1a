"""Every hostile request of the table at a real control plane with Talos machines, through our processes."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from libs.common.bus.protocol import Bus
from libs.common.contract.events import Decided
from libs.common.contract.subjects import DECIDED
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.service_processes import ServiceProcesses
from libs.testbed.signing_requests import CSRS, SigningOutcome
from services.csr.core.certificate_request import CertificateRequest, parse_request
from tests.bus_actors import wait_until
from tests.csr_actors import TwinNode
from tests.csr_cases import AMONG_OTHERS, CASES, CsrCase
from tests.integration.conftest import ConnectBus, StartServices
from tests.integration.csr_cluster import (
    all_still_ready,
    all_users_may_request,
    file_case,
    join_web_1,
    names_in,
    pids_of,
    state_of,
    the_cluster_of_the_cases,
    until_said,
)

BOUNDS = ("--csr-min-expiration=1h", "--csr-max-expiration=720h")  # as POLICY has them
# none may have to answer for more than its budget
TWINS = tuple(TwinNode(number) for number in range(20, 44))
FINAL = {"approve": "Approved", "deny": "Denied"}


class Filed:
    """The created requests and their outcomes."""

    def __init__(self, kubelets: KubeletFleet, services: ServiceProcesses, bus: Bus) -> None:
        """`bus` has the decisions of csr."""
        self.kubelets = kubelets
        self.requests: dict[str, CsrCase] = {}  # by the name of the request
        self.services = services
        self._bus = bus

    async def one_after_the_other(self, cases: list[CsrCase]) -> None:
        """Requests of one node, one after the other: none is superseded before its decision."""
        for case in cases:
            name = await file_case(self.kubelets, case)
            if not name:
                continue
            self.requests[name] = case
            if case.expected in FINAL:
                await self.kubelets.wait_for_outcome(name)
            elif case.expected == "wait":
                await self._waits(name, case)

    async def _waits(self, name: str, case: CsrCase) -> None:
        await until_said(self.services, "csr", name, case.reason)
        message = await self._bus.get_last(f"{DECIDED}.csr.csr.{name}")
        assert message is not None, case.name
        assert isinstance(message.event, Decided)
        assert message.event.outcome == "waiting", case.name
        assert case.reason in message.event.reason, case.name

    async def nodes_are_told(self) -> bool:
        """Each Node whose kubelet was denied something has an Event that says so."""
        events = (await self.kubelets.request("GET", "/api/v1/namespaces/default/events")).body["items"]
        told = {event["involvedObject"].get("uid") for event in events if event["reason"] == "CSRDenied"}
        nodes = (await self.kubelets.request("GET", "/api/v1/nodes")).body["items"]
        untold = {node["metadata"]["name"] for node in nodes if node["metadata"]["uid"] not in told}
        denied = {case.username for case in self.requests.values() if case.expected == "deny"}
        return not denied & {f"system:node:{name}" for name in untold}

    async def outcomes(self) -> dict[str, SigningOutcome]:
        """By the name of the request."""
        states = await asyncio.gather(*(state_of(self.kubelets, name) for name in self.requests))
        return dict(zip(self.requests, states, strict=True))


async def honest(kubelets: KubeletFleet, name: str, ip: str) -> None:
    """That node gets what is its own, whatever web-1's machine says of itself."""
    request = await kubelets.request_certificate(SimKubelet(name=name, ips=(ip,)))
    outcome = await kubelets.wait_for_outcome(request)
    assert outcome.certificate, (name, outcome)
    assert names_in(outcome) == ([name], [ip])


def as_expected(case: CsrCase, outcome: SigningOutcome) -> None:
    """A certificate for exactly what a good one asks for; nothing for any other, and the reason with it."""
    kind = FINAL.get(case.expected)
    assert list(outcome.conditions) == ([kind] if kind else []), (case.name, outcome)
    if kind == "Approved":
        asked = parse_request(case.pem())
        assert isinstance(asked, CertificateRequest), case.name
        assert names_in(outcome) == (list(asked.dns_names), list(asked.ips)), case.name
    else:
        assert not outcome.certificate, case.name
    if kind:
        assert case.reason in outcome.conditions[kind]["message"], (case.name, outcome)


def approvals(control_plane: ControlPlane, since: int) -> tuple[int, set[tuple[str, str]]]:
    """How many approvals and denials our processes wrote, and what else they did with requests."""
    ours: Counter[tuple[str, str]] = Counter()
    for request, count in control_plane.audit_counts(since).items():
        if request.user.startswith("talos-ccm") and request.resource.startswith("certificatesigning"):
            assert request.succeeded, request
            ours[request.verb, request.resource] += count
    return ours.pop(("patch", "certificatesigningrequests/approval"), 0), set(ours)


@pytest.fixture
async def filed(start_services: StartServices, connect_bus: ConnectBus, kubelets: KubeletFleet) -> Filed:
    """Nothing yet; our processes are ready."""
    services = await start_services(own_flags={"csr": BOUNDS})
    return Filed(kubelets, services, await connect_bus("labeler"))


async def test_of_all_requests_only_the_good_ones_are_signed_and_each_costs_one_request(
    filed: Filed, control_plane: ControlPlane, kubelets: KubeletFleet, machines: MachineFleet
):
    pids, since = pids_of(filed.services), control_plane.audit_mark()
    async with all_users_may_request(kubelets), the_cluster_of_the_cases(machines, kubelets, TWINS):
        others = {"db-1": "10.0.0.9", "db-2": "10.0.0.11", "old-1": "10.0.0.7", "writes-1": "10.0.0.12"}
        await honest(kubelets, "db-1", others["db-1"])
        await join_web_1(kubelets)
        later = (honest(kubelets, name, ip) for name, ip in others.items() if name != "db-1")
        await asyncio.gather(*later)
        await machines.delete_machines("old-1")
        await asyncio.gather(*(filed.one_after_the_other(cases) for cases in of_each_node()))
        outcomes = await filed.outcomes()
        for name, case in filed.requests.items():
            as_expected(case, outcomes[name])
        kinds = Counter(case.expected for case in filed.requests.values())
        assert kinds.keys() == {"approve", "deny", "wait", "ignore"}
        decided = kinds["approve"] + kinds["deny"]
        assert decided > 100
        written, else_done = approvals(control_plane, since)
        assert written == decided + len(others)
        assert else_done <= {(verb, "certificatesigningrequests") for verb in ("list", "watch")}
        await wait_until(filed.nodes_are_told, "each Node with a denial has an Event of it")
        await all_still_ready(filed.services, pids)
    for name in filed.requests:
        await kubelets.request("DELETE", f"{CSRS}/{name}")


def of_each_node() -> Iterator[list[CsrCase]]:
    """What web-1 asks for among others, and the other cases, dealt out to the twins."""
    can_be_filed = [case for case in CASES if case.username.isprintable()]
    yield [case for case in can_be_filed if case.name in AMONG_OTHERS]
    rest = [case for case in can_be_filed if case.name not in AMONG_OTHERS]
    for n, twin in enumerate(TWINS):
        yield [twin.adapt_case(case) for case in rest[n :: len(TWINS)]]
