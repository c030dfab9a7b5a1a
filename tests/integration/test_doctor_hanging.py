"""One kubelet hangs: what the others say is heard all the same."""

import asyncio
from pathlib import Path

from aiohttp import web

from cli.cluster.kube_reader import KubeReader
from cli.doctor.kubelet_queries import query_serving_certificates
from libs.common.contract.node import NodeCondition
from tests.builders import make_node
from tests.doctor_cases import make_snapshot
from tests.kube_loopback import LoopbackServer, open_api

READY = (NodeCondition(type="Ready", status="True"),)


async def test_a_kubelet_that_hangs_keeps_no_other_from_answering(tmp_path: Path):
    others: set[str] = set()
    answered = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        node = request.path.split("/")[4]
        if node == "hangs":
            await answered.wait()
        else:
            others.add(node)
            if len(others) == 2:
                answered.set()
        return web.json_response({"kubeletconfig": {"serverTLSBootstrap": True}})

    nodes = tuple(make_node(name, uid=name, conditions=READY) for name in ("hangs", "a", "b"))
    async with LoopbackServer.start() as loopback, open_api(loopback.url, tmp_path, connections=1) as api:
        loopback.answer = answer
        assert await query_serving_certificates(KubeReader(api), make_snapshot(nodes=nodes)) == {
            "hangs": True,
            "a": True,
            "b": True,
        }
