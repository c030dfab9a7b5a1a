"""The /exec endpoint of a kubelet: TLS, WebSocket v4.channel.k8s.io."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from aiohttp import web

from libs.testbed.container_commands import ContainerCommands
from libs.testbed.kubelets import STRATEGIC, KubeletFleet
from libs.testbed.loopback_site import LoopbackSite
from libs.testbed.ports import allocate_port


class ExecKubelet:
    """One node; its containers run `python` as this interpreter, each with its own environment."""

    def __init__(self, node: str, port: int) -> None:
        self.node = node
        self.port = port
        self._containers = ContainerCommands()

    @property
    def commands(self) -> list[tuple[str, ...]]:
        """The executed commands, in order."""
        return self._containers.commands

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls, node: str, certificate: Path, key: Path, admin: KubeletFleet
    ) -> AsyncIterator[ExecKubelet]:  # fmt: skip
        """Listen on 127.0.0.1, and create the Node with this address and port."""
        kubelet = cls(node, allocate_port())
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate, key)
        app = web.Application()
        app.router.add_route("*", "/exec/{namespace}/{pod}/{container}", kubelet._containers.serve)
        runner = web.AppRunner(app)
        site = await LoopbackSite.start(runner, "127.0.0.1", kubelet.port, tls=tls)
        try:
            await kubelet._register(admin)
            yield kubelet
        finally:
            await admin.request("DELETE", f"/api/v1/nodes/{node}")
            await site.stop()

    async def run_pod(
        self,
        admin: KubeletFleet,
        *,
        namespace: str,
        name: str,
        container: str,
        env: Mapping[str, str],
    ) -> None:
        """Create a Pod on this node and report it as running."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        spec = {
            "nodeName": self.node,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": container, "image": "none"}],
        }
        pod = {"metadata": {"name": name}, "spec": spec}
        await admin.send("POST", path, body={"apiVersion": "v1", "kind": "Pod", **pod})
        self._containers.add(namespace, name, container, env)
        status = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        await admin.send("PATCH", f"{path}/{name}/status", body={"status": status}, content_type=STRATEGIC)

    async def delete_pod(self, admin: KubeletFleet, *, namespace: str, name: str) -> None:
        """Delete the Pod without a grace period."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        await admin.request("DELETE", path, body={"gracePeriodSeconds": 0})

    async def _register(self, admin: KubeletFleet) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node}}
        await admin.send("POST", "/api/v1/nodes", body=node)
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
        }
        await admin.send(
            "PATCH", f"/api/v1/nodes/{self.node}/status", body={"status": status}, content_type=STRATEGIC
        )
