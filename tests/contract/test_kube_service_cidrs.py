"""What the watcher relies on for ServiceCIDRs, on a real and a simulated API server."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Forbidden
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.kube.objects import SERVICE_CIDRS, Resource, ServiceCidr
from libs.common.kube.reflector import Reflector
from libs.testbed.kubelets import MERGE, KubeletFleet
from services.watcher.resync_requests import ResyncRequests
from services.watcher.service_cidr_informer import ServiceCidrInformer
from tests.bus_actors import wait_until
from tests.contract.conftest import ApiServer

PATH = SERVICE_CIDRS.path


@contextlib.asynccontextmanager
async def following(api: KubeApi, resource: Resource[ServiceCidr]) -> AsyncIterator[ServiceCidrInformer]:
    informer = ServiceCidrInformer(
        lambda on_unreadable, on_failure: Reflector(
            api, resource, on_unreadable=on_unreadable, on_failure=on_failure
        ),
        ResyncRequests(time.monotonic),
    )
    task = asyncio.create_task(informer.run())
    try:
        yield informer
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def informer(api: KubeApi) -> AsyncIterator[ServiceCidrInformer]:
    async with following(api, SERVICE_CIDRS) as running:
        await wait_until(lambda: running.cidrs is not None, "listed")
        yield running


def a_service_cidr(name: str, *cidrs: str, **metadata: Any) -> dict[str, Any]:
    head = {"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR"}
    return head | {"metadata": {"name": name, **metadata}, "spec": {"cidrs": list(cidrs)}}


@pytest.mark.real_only
async def test_a_range_counts_from_its_creation_until_it_is_gone(
    informer: ServiceCidrInformer, admin: KubeletFleet
):
    before = informer.cidrs or ()
    added = ("10.200.0.0/16", "fd00:200::/112")
    body = a_service_cidr("added", *added, finalizers=["example.com/in-use"])
    assert (await admin.request("POST", PATH, body=body)).status == 201
    await wait_until(lambda: informer.cidrs == tuple(sorted({*before, *added})), "added")
    await admin.request("DELETE", f"{PATH}/added")
    found = (await admin.request("GET", f"{PATH}/added")).body
    assert found["metadata"]["deletionTimestamp"]
    await admin.request("POST", PATH, body=a_service_cidr("later", "10.201.0.0/16"))
    await wait_until(lambda: "10.201.0.0/16" in (informer.cidrs or ()), "later")
    assert set(added) <= set(informer.cidrs or ()), "it terminates"
    await admin.request("DELETE", f"{PATH}/later")
    await admin.request("PATCH", f"{PATH}/added", body={"metadata": {"finalizers": None}}, content_type=MERGE)
    await wait_until(lambda: informer.cidrs == before, "gone")
    assert informer.problems() == ()


async def test_an_api_server_without_the_kind_has_no_ranges(api: KubeApi):
    older = Resource(plural="servicecidrs", path=PATH.replace("/v1/", "/v1alpha9/"), item=ServiceCidr)
    async with following(api, older) as informer:
        await wait_until(lambda: informer.cidrs == (), "none")
        assert informer.problems() == ()


async def test_ranges_that_may_not_be_listed_are_unknown_and_the_missing_rule_is_named(api_server: ApiServer):
    api = KubeApi(load_kube_config(api_server.kubeconfig("nobody"), {}), user_agent="talos-ccm/test")
    try:
        async with following(api, SERVICE_CIDRS) as informer:
            await wait_until(lambda: not informer.is_sync_pending, "refused")
            assert isinstance(informer._last_error, Forbidden)
            assert informer.cidrs is None
            assert any("resources [servicecidrs]" in problem for problem in informer.problems())
    finally:
        await api.close()
