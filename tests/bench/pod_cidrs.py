"""A burst in which nodes get pod CIDRs, compared with the same burst without ipam."""

from http import HTTPStatus
from typing import Final

import msgspec

from libs.common.contract.services import CLAIM_PAGES_NAMESPACE
from libs.testbed.child_process import make_directory
from libs.testbed.kubelets import RequestRejected
from libs.testbed.service_processes import PATIENT_LEASE_FLAGS
from services.ipam.pages import NAME_PREFIX
from tests.bench.bench_cluster import BenchCluster
from tests.bench.figures import Figures
from tests.bench.measurement import Measurement
from tests.bench.node_joins import measure_joins_with_services
from tests.bench.pod_cidr_figures import compare_bursts, find_pod_cidr_problems

_CONFIG_MAPS: Final = f"/api/v1/namespaces/{CLAIM_PAGES_NAMESPACE}/configmaps"


async def measure_with_and_without_pod_cidrs(m: Measurement) -> tuple[Figures, list[str]]:
    """Measure twice, each time with restarted services: with the defaults, and with ipam.

    The order alternates from run to run (ABBA), so that other load affects both equally.
    """
    nodes = m.options.nodes
    if m.number % 2:
        without, problems = await _measure_without(m, nodes)
        served, more = await _measure_with(m, nodes)
    else:
        served, more = await _measure_with(m, nodes)
        without, problems = await _measure_without(m, nodes)
    figures = compare_bursts(without, served)
    return figures, [*problems, *more, *find_pod_cidr_problems(figures, nodes=nodes)]


async def _measure_without(m: Measurement, nodes: int) -> tuple[Figures, list[str]]:
    profiles = make_directory(m.profiles / "without-pod-cidrs") if m.profiles else None
    m = msgspec.structs.replace(m, name=f"{m.name}-without", profiles=profiles)
    return await measure_joins_with_services(m, nodes, own_flags=PATIENT_LEASE_FLAGS)


async def _measure_with(m: Measurement, nodes: int) -> tuple[Figures, list[str]]:
    served = await measure_joins_with_services(m, nodes, pod_cidrs=True, own_flags=PATIENT_LEASE_FLAGS)
    await delete_claims(m.stage)
    return served


async def delete_claims(stage: BenchCluster) -> None:
    """Delete all claims, so that every run starts without any. All Nodes of the run are deleted already."""
    listed = (await stage.admin.request("GET", _CONFIG_MAPS)).body["items"]
    for name in (each["metadata"]["name"] for each in listed):
        if name.startswith(NAME_PREFIX):
            answer = await stage.admin.request("DELETE", f"{_CONFIG_MAPS}/{name}")
            if answer.status != HTTPStatus.OK:
                raise RequestRejected(f"deleting {name}", answer)
