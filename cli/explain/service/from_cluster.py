"""Gathers the evidence about a Service from Kubernetes and NATS, as the caller."""

import asyncio

import msgspec

from cli.cluster.access import open_kube_client
from cli.cluster.cloud_accounts import list_accounts
from cli.cluster.kube_reader import get_or_unavailable
from cli.cluster.query import ClusterQuery
from cli.cluster.read_cluster import fetch_lease_state, list_events, list_workloads, read_cluster
from cli.cluster.unavailable import Unavailable
from cli.command_exit import CommandError
from cli.explain.service.service_explanation import ServiceEvidence, find_account
from libs.common.contract.services import get_cloud_lease_name
from libs.common.kube.errors import NotFound
from libs.common.kube.events import ObjectReference


async def gather_service_evidence(query: ClusterQuery, name: str) -> ServiceEvidence:
    """Read the evidence about the Service `name` in `query.namespace`. Raises CommandError."""
    namespace = query.namespace
    async with open_kube_client(query, command="explain") as kube:
        try:
            service = await kube.get_service(namespace, name)
        except NotFound:
            raise CommandError(
                f"Service {namespace}/{name} not found: set its namespace with --namespace"
            ) from None
        about = ObjectReference(kind="Service", name=service.name, namespace=namespace, uid=service.uid)
        snapshot, events, workloads = await asyncio.gather(
            read_cluster(kube, query, "nodes"),
            get_or_unavailable(list_events(kube, about), f"list events --namespace {namespace}"),
            get_or_unavailable(list_workloads(kube), "list deployments.apps --all-namespaces"),
        )
        evidence = ServiceEvidence(
            service=service,
            at=snapshot.at,
            accounts=workloads if isinstance(workloads, Unavailable) else tuple(list_accounts(workloads)),
            events=events,
            nodes=snapshot.nodes,
        )
        if (process := find_account(evidence)) is None:
            return evidence
        place, lease = process.lease_namespace, get_cloud_lease_name(process.account.name)
        state = await get_or_unavailable(
            fetch_lease_state(kube, place, lease, f"Lease {place}/{lease}"),
            f"get leases.coordination.k8s.io/{lease} --namespace {place}",
        )
        return msgspec.structs.replace(evidence, lease=state)
