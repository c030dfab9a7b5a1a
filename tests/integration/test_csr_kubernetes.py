"""csr with its own rights at the real API server and signer: every hostile request, as it can be filed."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from libs.common.contract.services import CSR
from libs.common.contract.signing_request import KUBELET_SERVING, SigningRequest, trim_signing_request
from libs.common.kube.api import KubeApi
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, RequestRejected
from libs.testbed.service_permissions import get_user_name
from libs.testbed.signing_requests import CSRS
from tests.bus_actors import wait_until
from tests.csr_actors import CsrServiceFlow
from tests.csr_cases import CASES, FACTS, NODES, POLICY, WHO, CsrCase
from tests.integration.csr_cluster import request_case
from tests.integration.service_api import open_api_of
from tests.manual_clock import ManualClock

OUTCOMES = {"approve": "approved", "deny": "denied", "wait": "waiting", "ignore": "ignored"}


@pytest.fixture
async def kube(control_plane: ControlPlane, kubelets: KubeletFleet) -> AsyncIterator[KubeApi]:
    """As csr's own user."""
    async with open_api_of(CSR, control_plane, kubelets) as api:
        yield api


async def held(kubelets: KubeletFleet, name: str) -> SigningRequest:
    answer = await kubelets.request("GET", f"{CSRS}/{name}")
    return msgspec.convert(answer.body, SigningRequest)


def can_be_filed(case: CsrCase) -> bool:
    """Not for other signers, nor for a user name that no HTTP header can carry."""
    return case.signer == KUBELET_SERVING and case.username.isascii() and case.username.isprintable()


async def filed(kubelets: KubeletFleet, case: CsrCase) -> SigningRequest | None:
    """As Kubernetes holds it; None if the API server refuses it by itself."""
    try:
        name = await request_case(kubelets, case)
    except RequestRejected:
        return None
    return await held(kubelets, name)


async def test_no_hostile_request_is_signed_and_every_good_one_is_with_one_request_each(
    tmp_path: Path, control_plane: ControlPlane, kubelets: KubeletFleet, kube: KubeApi
):
    clock, ended, wanted, names = ManualClock(), dict[str, str](), dict[str, str](), dict[str, str]()
    since = control_plane.audit_mark()
    async with (
        CsrServiceFlow.open("memory", tmp_path, kube=kube) as flow,
        flow.run_csr(
            clock=clock,
            min_expiration_seconds=float(POLICY.min_expiration_seconds or 0),
            max_expiration_seconds=float(POLICY.max_expiration_seconds or 0),
        ),
    ):
        await flow.publish_case_cluster()
        for case in filter(can_be_filed, CASES):
            request = await filed(kubelets, case)
            assert (request is None) is bool(case.refused_by_api) or case.refused_by_api is None, case.name
            if request is None:
                continue
            names[case.name] = request.name
            seen = trim_signing_request(request)
            place = await flow.observe_request(seen)
            await flow.enrich_request(
                seen,
                observed=place,
                facts=FACTS[WHO],
                node_uid=NODES[WHO].uid,
                answering_addresses=("10.0.0.5",),
            )
            ended[case.name] = (await flow.wait_for_decision(request.name, *OUTCOMES.values())).outcome
            wanted[case.name] = OUTCOMES[case.expected]
            await flow.observe_request(trim_signing_request(await held(kubelets, request.name)))
            clock.advance(61)  # the rate limit is not tested here
            await flow.publish_leading()
    assert ended == wanted
    good = {name for name, outcome in ended.items() if outcome == "approved"}
    await wait_until(
        lambda: _all_issued(kubelets, [names[case] for case in good]), "all good ones are issued"
    )
    for what, name in names.items():
        request = await held(kubelets, name)
        assert bool(request.status.certificate) is (what in good), what
        conditions = [condition.type for condition in request.status.conditions]
        assert conditions == {"approved": ["Approved"], "denied": ["Denied"]}.get(ended[what], []), what
        await kubelets.request("DELETE", f"{CSRS}/{name}")
    decided = sum(outcome in ("approved", "denied") for outcome in ended.values())
    ours = [(r, n) for r, n in control_plane.audit_counts(since).items() if r.user == get_user_name(CSR)]
    assert all(request.succeeded for request, _ in ours)
    done = Counter({(r.verb, r.resource): n for r, n in ours if r.resource != "events"})
    assert done == {("patch", "certificatesigningrequests/approval"): decided}
    assert len(good) >= 5
    assert decided > 90


async def _all_issued(kubelets: KubeletFleet, names: list[str]) -> bool:
    return all([(await held(kubelets, name)).status.certificate for name in names])
