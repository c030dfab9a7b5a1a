"""Gathers the evidence about a Service from Kubernetes and NATS, as the caller."""

import asyncio
from datetime import UTC, datetime

import msgspec

from cli.cluster.access import open_kube_client
from cli.cluster.balancer_accounts import AccountProcess, list_accounts
from cli.cluster.kube_events import EventSummary, KubeEvent, summarize_events
from cli.cluster.kube_reader import (
    ClusterUnavailable,
    get_object,
    get_or_unavailable,
    list_all,
    read_last_date,
    run_gathering,
)
from cli.cluster.lease_state import LeaseState, read_lease_state
from cli.cluster.query import ClusterQuery
from cli.cluster.read_cluster import list_workloads
from cli.cluster.unavailable import NOT_QUERIED, Unavailable
from cli.explain.service.service_evidence import ServiceEvidence
from cli.explain.service.service_explanation import find_account
from libs.common.contract.kube_service import KubeService
from libs.common.contract.services import get_cloud_lease_name
from libs.common.kube.api import NODES, KubeApi, raise_unreadable
from libs.common.kube.errors import NotFound
from libs.common.kube.events import ObjectReference
from libs.common.kube.lease import LeaseSpec
from libs.common.kube.objects import Resource


def gather_service_evidence(query: ClusterQuery, name: str) -> ServiceEvidence:
    """Read the evidence about the Service `name` in `query.namespace`. Raises ClusterUnavailable."""
    return run_gathering(_gather(query, name))


async def _gather(query: ClusterQuery, name: str) -> ServiceEvidence:
    path = f"/api/v1/namespaces/{query.namespace}/services/{name}"
    async with open_kube_client(query.kubeconfig, query.context, command="explain") as kube:
        asked = datetime.now(UTC)
        try:
            service = await get_object(kube, path, KubeService)
        except NotFound:
            raise ClusterUnavailable(
                f"Service {query.namespace}/{name} not found: set its namespace with --namespace"
            ) from None
        clock = read_last_date(kube, asked)
        events, nodes, workloads = await asyncio.gather(
            get_or_unavailable(_list_events(kube, service), f"list events --namespace {query.namespace}"),
            get_or_unavailable(list_all(kube, NODES, raise_unreadable), "list nodes"),
            get_or_unavailable(list_workloads(kube), "list deployments.apps --all-namespaces"),
        )
        evidence = ServiceEvidence(
            service=service,
            at=asked if isinstance(clock, Unavailable) else asked + clock.offset,
            accounts=workloads if isinstance(workloads, Unavailable) else tuple(list_accounts(workloads)),
            events=events,
            nodes=nodes,
        )
        process = find_account(evidence)
        lease = await _read_lease(kube, process) if process is not None else NOT_QUERIED
        return msgspec.structs.replace(evidence, lease=lease)


async def _list_events(kube: KubeApi, service: KubeService) -> tuple[EventSummary, ...]:
    place = service.metadata.namespace
    query = {"fieldSelector": f"involvedObject.name={service.name},involvedObject.kind=Service"}
    path = f"/api/v1/namespaces/{place}/events"
    found = await list_all(kube, Resource(plural="events", path=path, item=KubeEvent, query=query))
    about = ObjectReference(kind="Service", name=service.name, namespace=place, uid=service.uid)
    return summarize_events(found, about)


async def _read_lease(kube: KubeApi, process: AccountProcess) -> LeaseState | Unavailable:
    """Return the Lease of the account's process; without a holder if there is none."""
    place, name = process.lease_namespace, get_cloud_lease_name(process.account.name)

    async def read() -> LeaseState:
        try:
            spec = (await kube.get_lease(place, name)).spec
        except NotFound:
            spec = LeaseSpec()
        return read_lease_state(spec, f"Lease {place}/{name}")

    return await get_or_unavailable(read(), f"get leases.coordination.k8s.io/{name} --namespace {place}")
