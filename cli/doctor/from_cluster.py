"""Gathers the data for the checks with the caller's permissions; writes nothing: reviews are not stored."""

import asyncio
import importlib.metadata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from cli.cluster.certificate_signing_request import CertificateSigningRequest
from cli.cluster.credentials import open_kube_client
from cli.cluster.installation import (
    Installation,
    assume_installation,
    choose_installation,
    find_installations,
)
from cli.cluster.kube_listing import ClusterUnavailable, list_nodes, run_gathering
from cli.cluster.kube_objects import (
    LeaseItem,
    Namespace,
    TalosAccount,
    Workload,
)
from cli.cluster.kube_reader import KubeReader, get_or_not_found, get_or_unavailable
from cli.cluster.unavailable import AbsentObject, Unavailable
from cli.cluster.workload_queries import list_workloads
from cli.doctor.access_reviews import review_access
from cli.doctor.checks.permissions import get_role_paths
from cli.doctor.installation_snapshot import InstallationSnapshot
from cli.doctor.kubelet_queries import query_serving_certificates
from cli.doctor.pod_probe import PodProbe, probe_in_pod
from cli.doctor.required_permissions import AccessReviewResult, list_access_reviews
from cli.doctor.unready_pods import fetch_last_messages, list_pods
from cli.inside.flow_client import FlowQuery, query_flow
from cli.inside.flow_snapshot import FlowSnapshot, FlowUnavailable
from libs.common.contract.node import Node
from libs.common.kube.api import SIGNING_REQUESTS
from libs.common.kube.errors import KubeError, NotFound
from libs.common.kube.objects import ConfigMap

SYSTEM: Final = "kube-system"
_CONNECTIONS: Final = 8
_ELSEWHERE: Final = "permission to list them in all namespaces is missing"
_TALOS: Final = "/apis/talos.dev/v1alpha1"


class DoctorQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The installation to check, with credentials and address."""

    kubeconfig: Path | None = None
    context: str = ""
    namespace: str = ""  # "" = any namespace
    release: str = ""


class _ReviewResults(msgspec.Struct, frozen=True):
    reviewed: tuple[AccessReviewResult, ...] | Unavailable
    there: Mapping[str, bool] = {}


class _TalosObjects(msgspec.Struct, frozen=True):
    account: TalosAccount | AbsentObject | Unavailable
    kind: bool
    service: bool | Unavailable


def gather_installation(source: DoctorQuery, only: frozenset[str]) -> InstallationSnapshot:
    """Return the data for these checks, or for all. Raises ClusterUnavailable."""
    return run_gathering(_gather(source, only))


async def _gather(source: DoctorQuery, only: frozenset[str]) -> InstallationSnapshot:
    kube = open_kube_client(source.kubeconfig, source.context, user_agent="talos-ccm-doctor")
    several = kube.with_own_connections(connections=_CONNECTIONS)
    try:
        return await _gather_kubernetes(KubeReader(several), source, only)
    finally:
        await several.close()
        await kube.close()


async def _gather_kubernetes(
    ask_kube: KubeReader, source: DoctorQuery, only: frozenset[str]
) -> InstallationSnapshot:
    server_clock = await ask_kube.read_clock()
    workloads, everywhere = await list_workloads(ask_kube, source.namespace or SYSTEM)
    found = find_installations(workloads) if not isinstance(workloads, Unavailable) else ()
    here = select_installation(source, workloads, found, everywhere=everywhere)
    place = here.namespace
    own, system, nodes, requests, leases = await asyncio.gather(
        list_pods(ask_kube, place),
        list_pods(ask_kube, SYSTEM),
        get_or_unavailable(_list_nodes(ask_kube), "list nodes"),
        get_or_unavailable(_list_requests(ask_kube), "list certificatesigningrequests.certificates.k8s.io"),
        _list_leases(ask_kube, here.lease[0]),
    )
    seen = InstallationSnapshot(
        at=datetime.now(UTC),
        version=importlib.metadata.version("talos-ccm"),
        installation=here,
        others=tuple(one for one in found if one is not here),
        workloads=() if isinstance(workloads, Unavailable) else workloads,
        everywhere=everywhere,
        everywhere_why="" if everywhere else _ELSEWHERE,
        pods=own,
        system_pods=system,
        nodes=nodes,
        requests=requests,
        leases=leases,
        server_clock=server_clock,
    )
    return await _gather_remaining(ask_kube, source, seen, only)


async def _gather_remaining(
    ask_kube: KubeReader, source: DoctorQuery, seen: InstallationSnapshot, only: frozenset[str]
) -> InstallationSnapshot:
    """Add the data from further sources, but only for checks that need it."""
    here = seen.installation

    def needed(*checks: str) -> bool:
        return not only or bool(only & set(checks))

    unready = await fetch_last_messages(ask_kube, seen) if needed("services") else ((), {})
    asking = await query_serving_certificates(ask_kube, seen) if needed("serving-certificates") else {}
    config = await _read_config(ask_kube, here)
    reviews = await _review_access(ask_kube, here) if needed("rights") else _ReviewResults(())
    talos = await _read_talos_objects(ask_kube, here)
    told = PodProbe(talos=Unavailable(reason="not queried"), clock=Unavailable(reason="not queried"))
    if here.talos_account and needed("talos", "clock"):
        nodes = () if isinstance(seen.nodes, Unavailable) else seen.nodes
        told = await probe_in_pod(ask_kube.kube, here, seen.pods, nodes)
    flow: FlowSnapshot | FlowUnavailable = FlowUnavailable(reason="not queried")
    if needed("nats") and not here.is_all_in_one:
        flow = await _query_flow(source, here)
    return msgspec.structs.replace(
        seen,
        events=unready[0],
        last_lines=unready[1],
        serving=asking,
        config=config,
        reviews=reviews.reviewed,
        objects_there=reviews.there,
        talos_account=talos.account,
        talos_kind=talos.kind,
        talos_service=talos.service,
        talos=told.talos,
        pod_clock=told.clock,
        flow=flow,
        authority=await _read_nats_authority(ask_kube, here),
        namespace_labels=await get_or_unavailable(
            _read_labels(ask_kube, here.namespace), f"get namespaces/{here.namespace}"
        ),
    )


def select_installation(
    source: DoctorQuery,
    workloads: tuple[Workload, ...] | Unavailable,
    found: Sequence[Installation],
    *,
    everywhere: bool,
) -> Installation:
    """Return the requested installation, or an assumed one if workloads may not be listed.

    Raises ClusterUnavailable if none matches.
    """
    if isinstance(workloads, Unavailable):
        return assume_installation(source.namespace or SYSTEM, source.release, workloads.reason)
    here = choose_installation(found, source.namespace, source.release)
    if here is not None:
        return here
    if found:
        there = "; ".join(f"--namespace {one.namespace} --release {one.release}" for one in found)
        raise ClusterUnavailable(f"no such installation; found: {there}")
    if everywhere:
        raise ClusterUnavailable("this controller is not installed in the cluster; see docs/install.md")
    place = source.namespace or SYSTEM
    raise ClusterUnavailable(
        f"this controller is not installed in namespace {place}, and you may not list other "
        "namespaces: set --namespace, or see docs/install.md"
    )


async def _list_nodes(ask_kube: KubeReader) -> tuple[Node, ...]:
    return tuple(await list_nodes(ask_kube.kube))


async def _list_requests(ask_kube: KubeReader) -> tuple[CertificateSigningRequest, ...]:
    return await ask_kube.list_all(SIGNING_REQUESTS.path, CertificateSigningRequest, SIGNING_REQUESTS.query)


async def _list_leases(ask_kube: KubeReader, namespace: str) -> tuple[LeaseItem, ...] | Unavailable:
    """Return the Leases in the watcher's namespace and in kube-system, where other controllers lead."""
    found: list[LeaseItem] = []
    for place in dict.fromkeys((namespace, SYSTEM)):
        path = f"/apis/coordination.k8s.io/v1/namespaces/{place}/leases"
        right = f"list leases.coordination.k8s.io --namespace {place}"
        there = await get_or_unavailable(ask_kube.list_all(path, LeaseItem), right)
        if isinstance(there, Unavailable):
            return there
        found += there
    return tuple(found)


async def _read_config(ask_kube: KubeReader, here: Installation) -> str | AbsentObject | Unavailable:
    name, key = here.config_file
    return await _read_config_map(ask_kube, here.namespace, name, key) if name else AbsentObject()


async def _read_nats_authority(ask_kube: KubeReader, here: Installation) -> str | AbsentObject | Unavailable:
    return await _read_config_map(ask_kube, here.namespace, f"{here.prefix}-nats-ca", "ca.crt")


async def _read_config_map(
    ask_kube: KubeReader, namespace: str, name: str, key: str
) -> str | AbsentObject | Unavailable:
    right = f"get configmaps/{name} --namespace {namespace}"
    found = await get_or_not_found(ask_kube.kube.get_config_map(namespace, name), right)
    return found.data.get(key, AbsentObject()) if isinstance(found, ConfigMap) else found


async def _review_access(ask_kube: KubeReader, here: Installation) -> _ReviewResults:
    right = "create selfsubjectaccessreviews.authorization.k8s.io"
    reviewed = await get_or_unavailable(
        review_access(ask_kube, here.namespace, list_access_reviews(here)), right
    )
    if isinstance(reviewed, Unavailable):
        return _ReviewResults(reviewed)
    missed = [
        one.request for one in reviewed if one.request.is_required and not one.is_allowed and not one.error
    ]
    paths = sorted({path for asked in missed for path in get_role_paths(here, asked)})
    there = await asyncio.gather(*(_exists(ask_kube, path) for path in paths))
    return _ReviewResults(reviewed, {p: t for p, t in zip(paths, there, strict=True) if t is not None})


async def _exists(ask_kube: KubeReader, path: str) -> bool | None:
    """Return whether the object exists; None if it may not be read."""
    try:
        await ask_kube.get_bytes(path)
    except NotFound:
        return False
    except KubeError:
        return None
    return True


async def _read_talos_objects(ask_kube: KubeReader, here: Installation) -> _TalosObjects:
    name, place = here.talos_account, f"{_TALOS}/namespaces/{here.namespace}/serviceaccounts"
    if not name:
        return _TalosObjects(AbsentObject(), kind=True, service=True)
    right = f"get serviceaccounts.talos.dev/{name} --namespace {here.namespace}"
    account = await get_or_not_found(ask_kube.get_object(f"{place}/{name}", TalosAccount), right)
    kind = await _exists(ask_kube, _TALOS) if isinstance(account, AbsentObject) else True
    service = await get_or_not_found(
        ask_kube.get_bytes("/api/v1/namespaces/default/services/talos"),
        "get services/talos --namespace default",
    )
    if isinstance(service, Unavailable):
        return _TalosObjects(account, kind=kind is not False, service=service)
    return _TalosObjects(account, kind=kind is not False, service=not isinstance(service, AbsentObject))


async def _query_flow(source: DoctorQuery, here: Installation) -> FlowSnapshot | FlowUnavailable:
    """Query the flow; repeat once if a service seems absent, because a consumer may be between two pulls."""
    asked = FlowQuery(
        kubeconfig=source.kubeconfig,
        context=source.context,
        namespace=here.namespace,
        release=here.release,
    )
    flow = await query_flow(asked)
    if isinstance(flow, FlowSnapshot) and any(
        one.is_present is False for one in flow.services if here.runs_service(one.service)
    ):
        await asyncio.sleep(1.0)
        return await query_flow(asked)
    return flow


async def _read_labels(ask_kube: KubeReader, namespace: str) -> Mapping[str, str]:
    return (await ask_kube.get_object(f"/api/v1/namespaces/{namespace}", Namespace)).metadata.labels
