"""A burst in which nodes get pod CIDRs, set against the same burst of ours without ipam."""

from http import HTTPStatus
from typing import Final

import msgspec

from bench.figures import Figures
from bench.joining import joined_with_ours
from bench.measuring import Measuring
from bench.pod_cidr_figures import compared, pod_cidr_problems
from bench.stage import Stage
from libs.common.wiring import PAGES_NAMESPACE
from libs.testbed.kubelets import Refused
from services.ipam.pages import NAME_PREFIX

_CONFIG_MAPS: Final = f"/api/v1/namespaces/{PAGES_NAMESPACE}/configmaps"


async def with_and_without_pod_cidrs(m: Measuring) -> tuple[Figures, list[str]]:
    """Our services twice, started anew: first as by default, then with ipam among them."""
    nodes = m.wanted.nodes
    without, problems = await joined_with_ours(msgspec.structs.replace(m, name=f"{m.name}-without"), nodes)
    served, more = await joined_with_ours(m, nodes, pod_cidrs=True)
    await end_claims(m.stage)
    figures = compared(without, served)
    return figures, [*problems, *more, *pod_cidr_problems(figures, nodes=nodes)]


async def end_claims(stage: Stage) -> None:
    """Claims of Nodes that are gone: every run finds the pages empty. Nobody else is there to be robbed."""
    listed = (await stage.admin.request("GET", _CONFIG_MAPS)).body["items"]
    for name in (each["metadata"]["name"] for each in listed):
        if name.startswith(NAME_PREFIX):
            answer = await stage.admin.request("DELETE", f"{_CONFIG_MAPS}/{name}")
            if answer.status != HTTPStatus.OK:
                raise Refused(f"deleting {name}", answer)
