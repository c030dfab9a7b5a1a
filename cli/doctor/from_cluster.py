"""Gathers what the checks need, with the caller's own rights. Writes nothing: reviews are not stored."""

import asyncio
import importlib.metadata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from cli.cluster import CannotAsk, gathered
from cli.credentials import kubernetes
from cli.doctor.ask_kubelets import serving
from cli.doctor.ask_kubernetes import Ask, or_absent, or_not
from cli.doctor.ask_workloads import last_words, pods_in, workloads_of
from cli.doctor.checks.rights_held import paths_of
from cli.doctor.installation import Installation, assumed, chosen, installations
from cli.doctor.objects import (
    LeaseItem,
    Namespace,
    TalosAccount,
    Workload,
)
from cli.doctor.review_rights import review
from cli.doctor.rights import Reviewed, questions
from cli.doctor.seen import Absent, NotSeen, Seen
from cli.doctor.talos_in_pod import Told, talos_seen
from cli.explain.filed import Filed
from cli.inside.asking import FlowSource, ask
from cli.inside.seen import FlowSeen, Unknown
from libs.common.kube_api.api import SIGNING_REQUESTS
from libs.common.kube_api.config_maps import ConfigMap
from libs.common.kube_api.errors import KubeError, NotFound
from libs.common.node import Node

SYSTEM: Final = "kube-system"
_CONNECTIONS: Final = 8
_ELSEWHERE: Final = "the right to list them everywhere is missing"
_TALOS: Final = "/apis/talos.dev/v1alpha1"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Which installation, and by which way to ask."""

    kubeconfig: Path | None = None
    context: str = ""
    namespace: str = ""  # "" = wherever it is
    release: str = ""


class _Reviews(msgspec.Struct, frozen=True):
    reviewed: tuple[Reviewed, ...] | NotSeen
    there: Mapping[str, bool] = {}


class _Talos(msgspec.Struct, frozen=True):
    account: TalosAccount | Absent | NotSeen
    kind: bool
    service: bool | NotSeen


def gather(source: Source, only: frozenset[str]) -> Seen:
    """What these checks need, or all. Raises CannotAsk."""
    return gathered(_gather(source, only))


async def _gather(source: Source, only: frozenset[str]) -> Seen:
    kube = kubernetes(source.kubeconfig, source.context, user_agent="talos-ccm-doctor")
    several = kube.with_own_connections(connections=_CONNECTIONS)
    try:
        return await _seen(Ask(several), source, only)
    finally:
        await several.close()
        await kube.close()


async def _seen(ask_kube: Ask, source: Source, only: frozenset[str]) -> Seen:
    server_clock = await ask_kube.clock()
    workloads, everywhere = await workloads_of(ask_kube, source.namespace or SYSTEM)
    found = installations(workloads) if not isinstance(workloads, NotSeen) else ()
    here = meant(source, workloads, found, everywhere=everywhere)
    place = here.namespace
    own, system, nodes, requests, leases = await asyncio.gather(
        pods_in(ask_kube, place),
        pods_in(ask_kube, SYSTEM),
        or_not(_nodes(ask_kube), "list nodes"),
        or_not(_requests(ask_kube), "list certificatesigningrequests.certificates.k8s.io"),
        _leases(ask_kube, here.lease[0]),
    )
    seen = Seen(
        at=datetime.now(UTC),
        version=importlib.metadata.version("talos-ccm"),
        installation=here,
        others=tuple(one for one in found if one is not here),
        workloads=() if isinstance(workloads, NotSeen) else workloads,
        everywhere=everywhere,
        everywhere_why="" if everywhere else _ELSEWHERE,
        pods=own,
        system_pods=system,
        nodes=nodes,
        requests=requests,
        leases=leases,
        server_clock=server_clock,
    )
    return await _with_the_rest(ask_kube, source, seen, only)


async def _with_the_rest(ask_kube: Ask, source: Source, seen: Seen, only: frozenset[str]) -> Seen:
    """What takes a question to somebody else, and only for the checks that need it."""
    here = seen.installation

    def needed(*checks: str) -> bool:
        return not only or bool(only & set(checks))

    unready = await last_words(ask_kube, seen) if needed("services") else ((), {})
    asking = await serving(ask_kube, seen) if needed("serving-certificates") else {}
    config = await _config(ask_kube, here)
    reviews = await _reviews(ask_kube, here) if needed("rights") else _Reviews(())
    talos = await _talos(ask_kube, here)
    told = Told(talos=NotSeen(why="nobody has asked"), clock=NotSeen(why="nobody has asked"))
    if here.talos_account and needed("talos", "clock"):
        nodes = () if isinstance(seen.nodes, NotSeen) else seen.nodes
        told = await talos_seen(ask_kube.kube, here, seen.pods, nodes)
    flow: FlowSeen | Unknown = Unknown(reason="nobody has asked")
    if needed("nats") and not here.all_in_one:
        flow = await _flow(source, here)
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
        authority=await _authority(ask_kube, here),
        namespace_labels=await or_not(_labels(ask_kube, here.namespace), f"get namespaces/{here.namespace}"),
    )


def meant(
    source: Source,
    workloads: tuple[Workload, ...] | NotSeen,
    found: Sequence[Installation],
    *,
    everywhere: bool,
) -> Installation:
    """Of those that were `found`. Raises CannotAsk."""
    if isinstance(workloads, NotSeen):
        return assumed(source.namespace or SYSTEM, source.release, workloads.why)
    here = chosen(found, source.namespace, source.release)
    if here is not None:
        return here
    if found:
        there = "; ".join(f"--namespace {one.namespace} --release {one.release}" for one in found)
        raise CannotAsk(f"there is no such installation. There is: {there}")
    if everywhere:
        raise CannotAsk("none of its services is installed in this cluster: docs/install.md says how to")
    place = source.namespace or SYSTEM
    raise CannotAsk(
        f"none of its services is installed in namespace {place}, and you may not look at others: "
        "--namespace says where it is, docs/install.md how to install it"
    )


async def _nodes(ask_kube: Ask) -> tuple[Node, ...]:
    return tuple([node async for page in ask_kube.kube.list_nodes() for node in page.items])


async def _requests(ask_kube: Ask) -> tuple[Filed, ...]:
    return await ask_kube.listed(SIGNING_REQUESTS.path, Filed, SIGNING_REQUESTS.query)


async def _leases(ask_kube: Ask, namespace: str) -> tuple[LeaseItem, ...] | NotSeen:
    """Those beside the watcher's, and those of kube-system, where other controllers have theirs."""
    found: list[LeaseItem] = []
    for place in dict.fromkeys((namespace, SYSTEM)):
        path = f"/apis/coordination.k8s.io/v1/namespaces/{place}/leases"
        right = f"list leases.coordination.k8s.io --namespace {place}"
        there = await or_not(ask_kube.listed(path, LeaseItem), right)
        if isinstance(there, NotSeen):
            return there
        found += there
    return tuple(found)


async def _config(ask_kube: Ask, here: Installation) -> str | Absent | NotSeen:
    name, key = here.config_file
    return await _of_config_map(ask_kube, here.namespace, name, key) if name else Absent()


async def _authority(ask_kube: Ask, here: Installation) -> str | Absent | NotSeen:
    return await _of_config_map(ask_kube, here.namespace, f"{here.prefix}-nats-ca", "ca.crt")


async def _of_config_map(ask_kube: Ask, namespace: str, name: str, key: str) -> str | Absent | NotSeen:
    right = f"get configmaps/{name} --namespace {namespace}"
    found = await or_absent(ask_kube.kube.get_config_map(namespace, name), right)
    return found.data.get(key, Absent()) if isinstance(found, ConfigMap) else found


async def _reviews(ask_kube: Ask, here: Installation) -> _Reviews:
    right = "create selfsubjectaccessreviews.authorization.k8s.io"
    reviewed = await or_not(review(ask_kube, here.namespace, questions(here)), right)
    if isinstance(reviewed, NotSeen):
        return _Reviews(reviewed)
    missed = [one.asked for one in reviewed if one.asked.wanted and not one.allowed and not one.why_not]
    paths = sorted({path for asked in missed for path in paths_of(here, asked)})
    there = await asyncio.gather(*(_is_there(ask_kube, path) for path in paths))
    return _Reviews(reviewed, {p: t for p, t in zip(paths, there, strict=True) if t is not None})


async def _is_there(ask_kube: Ask, path: str) -> bool | None:
    """None if that may not be asked."""
    try:
        await ask_kube.read(path)
    except NotFound:
        return False
    except KubeError:
        return None
    return True


async def _talos(ask_kube: Ask, here: Installation) -> _Talos:
    name, place = here.talos_account, f"{_TALOS}/namespaces/{here.namespace}/serviceaccounts"
    if not name:
        return _Talos(Absent(), kind=True, service=True)
    right = f"get serviceaccounts.talos.dev/{name} --namespace {here.namespace}"
    account = await or_absent(ask_kube.got(f"{place}/{name}", TalosAccount), right)
    kind = await _is_there(ask_kube, _TALOS) if isinstance(account, Absent) else True
    service = await or_absent(
        ask_kube.read("/api/v1/namespaces/default/services/talos"), "get services/talos --namespace default"
    )
    if isinstance(service, NotSeen):
        return _Talos(account, kind=kind is not False, service=service)
    return _Talos(account, kind=kind is not False, service=not isinstance(service, Absent))


async def _flow(source: Source, here: Installation) -> FlowSeen | Unknown:
    """A consumer is between two requests at times: one that seems to be missing is looked for again."""
    asked = FlowSource(
        kubeconfig=source.kubeconfig,
        context=source.context,
        namespace=here.namespace,
        release=here.release,
    )
    flow = await ask(asked)
    if isinstance(flow, FlowSeen) and any(
        one.here is False for one in flow.services if here.runs(one.service)
    ):
        await asyncio.sleep(1.0)
        return await ask(asked)
    return flow


async def _labels(ask_kube: Ask, namespace: str) -> Mapping[str, str]:
    return (await ask_kube.got(f"/api/v1/namespaces/{namespace}", Namespace)).metadata.labels
