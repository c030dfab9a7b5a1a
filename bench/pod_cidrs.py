"""A burst in which nodes get pod CIDRs, set against the same burst of ours without ipam."""

from http import HTTPStatus
from typing import Final

import msgspec

from bench.figures import Figures
from bench.joining import PATIENT, joined_with_ours
from bench.measuring import Measuring
from bench.pod_cidr_figures import compared, pod_cidr_problems
from bench.stage import Stage, made
from libs.common.service_spec import CLAIM_PAGES_NAMESPACE
from libs.testbed.kubelets import Refused
from services.ipam.pages import NAME_PREFIX

_CONFIG_MAPS: Final = f"/api/v1/namespaces/{CLAIM_PAGES_NAMESPACE}/configmaps"


async def with_and_without_pod_cidrs(m: Measuring) -> tuple[Figures, list[str]]:
    """Our services twice, started anew: as by default, and with ipam among them.

    Which of the two comes first changes from run to run (ABBA): what goes on beside them strikes both alike.
    """
    nodes = m.wanted.nodes
    if m.number % 2:
        without, problems = await _without(m, nodes)
        served, more = await _with(m, nodes)
    else:
        served, more = await _with(m, nodes)
        without, problems = await _without(m, nodes)
    figures = compared(without, served)
    return figures, [*problems, *more, *pod_cidr_problems(figures, nodes=nodes)]


async def _without(m: Measuring, nodes: int) -> tuple[Figures, list[str]]:
    profiles = made(m.profiles / "without-pod-cidrs") if m.profiles else None
    m = msgspec.structs.replace(m, name=f"{m.name}-without", profiles=profiles)
    return await joined_with_ours(m, nodes, own_flags=PATIENT)


async def _with(m: Measuring, nodes: int) -> tuple[Figures, list[str]]:
    served = await joined_with_ours(m, nodes, pod_cidrs=True, own_flags=PATIENT)
    await end_claims(m.stage)
    return served


async def end_claims(stage: Stage) -> None:
    """Claims of Nodes that are gone: every run finds the pages empty. Nobody else is there to be robbed."""
    listed = (await stage.admin.request("GET", _CONFIG_MAPS)).body["items"]
    for name in (each["metadata"]["name"] for each in listed):
        if name.startswith(NAME_PREFIX):
            answer = await stage.admin.request("DELETE", f"{_CONFIG_MAPS}/{name}")
            if answer.status != HTTPStatus.OK:
                raise Refused(f"deleting {name}", answer)
