"""A cloud account in this process, which asks a simulated Hetzner Cloud, and its metrics for Prometheus."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry, start_http_server

from libs.common.bus.nats.bus import NatsBus
from libs.common.contract.instances import (
    RECORD_ANNOTATION,
    RECORD_DIGEST_LABEL,
    InstanceAnchor,
    InstanceRecord,
    encode_instance_record,
)
from libs.common.contract.node import Node
from libs.common.contract.protected_annotation import compute_digest
from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.observability import metrics
from libs.testbed.clouds.hcloud.project import SimProject
from libs.testbed.clouds.hcloud.server import SimHcloud, SimHcloudServer
from libs.testbed.kubelet_node import build_ready_status, build_registered_node
from libs.testbed.kubelets import MERGE, KubeletFleet, SimKubelet
from services.cloud.core.instance_schedule import QueryIntervals
from services.cloud.service import CloudService
from services.cloud.settings import CloudSettings
from tests.bootstrap_actors import BootstrapInstallation
from tests.bus_actors import run_during
from tests.service_flow import make_dependencies

ACCOUNT: Final = "prod"
TOKEN: Final = "a" * 64
_NODES: Final = "/api/v1/nodes"
_METRICS: Final = (
    metrics.CLOUD_REQUESTS,
    metrics.CLOUD_INSTANCES,
    metrics.CLOUD_REQUEST_DURATION,
    metrics.CLOUD_RATE_LIMIT,
    metrics.CLOUD_REQUESTS_LEFT,
    metrics.NETWORK_ROUTES,
    metrics.ROUTES_COMPARED,
    metrics.ROUTE_WRITES,
    metrics.UNROUTED_NODES,
)
_ROUTES: Final[dict[str, Any]] = {
    "controllers": ("cloud-node", "node-route-controller"),
    "route_pod_networks": (f"{ACCOUNT}=10.244.0.0/16",),
}


@dataclass(eq=False, kw_only=True)
class CloudAccount:
    """The account, and the project of its token."""

    project: SimProject
    anchor: InstanceAnchor
    address: str  # of its metrics
    kubelets: KubeletFleet

    async def join_servers(self, *names: str) -> list[int]:
        """Create servers, and their Nodes, which are initialized and ready; return the servers' ids."""
        servers = [self.project.add_server(name) for name in names]
        for name, server_id in zip(names, servers, strict=True):
            now = datetime.now(UTC)
            document = build_registered_node(SimKubelet(name=name, is_uninitialized=False), now)
            document["spec"]["providerID"] = f"hcloud://{server_id}"
            document["status"] |= build_ready_status(now)
            created = msgspec.convert(await self.kubelets.send("POST", _NODES, body=document), Node)
            await self._record(created, now)
        return servers

    async def _record(self, node: Node, now: datetime) -> None:
        """Write the record as lifecycle does, if a machine answers as this Node."""
        record = InstanceRecord(
            account=ACCOUNT,
            provider_id=node.spec.provider_id,
            node_uid=node.uid,
            system_uuid=node.status.node_info.system_uuid,
            anchor=self.anchor,
            seen_at=now,
        )
        text = encode_instance_record(record)
        metadata = {
            "annotations": {RECORD_ANNOTATION: text},
            "labels": {RECORD_DIGEST_LABEL: compute_digest(text)},
        }
        path = f"{_NODES}/{node.name}"
        await self.kubelets.send("PATCH", path, body={"metadata": metadata}, content_type=MERGE)


@asynccontextmanager
async def run_cloud_account(
    run_dir: Path,
    bus: BootstrapInstallation,
    kubelets: KubeletFleet,
    *,
    token: str = TOKEN,
    kubeconfig: Path | None = None,
) -> AsyncIterator[CloudAccount]:
    """The process of one account, but for its port: it asks often, with this token of the project.

    With a kubeconfig it makes the routes of the network.
    """
    registry = CollectorRegistry()
    for metric in _METRICS:
        metric.clear()
        registry.register(metric)
    token_file = run_dir / "token"
    token_file.write_text(token)
    async with SimHcloudServer.start(SimHcloud()) as server:
        project = server.cloud.add_project(TOKEN)
        anchor = InstanceAnchor(kind="network", id=str(project.add_network()))
        routes = _ROUTES | {"route_networks": (f"{ACCOUNT}={anchor.id}",)} if kubeconfig else {}
        settings = CloudSettings(
            accounts=(f"hcloud/{ACCOUNT}",),
            credential_file=token_file,
            endpoint=server.endpoint,
            step_seconds=0.2,
            requests_per_minute=10_000,
            intervals=QueryIntervals(list=0.5, round=0.5, anchor=0.5),
            **routes,
        )
        options = bus.bus_options(f"cloud-{ACCOUNT}")
        nats = await NatsBus.connect(options.pop("servers"), service=f"cloud-{ACCOUNT}", **options)
        kube = _open_kube(kubeconfig) if kubeconfig else None
        scraped, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
        try:
            async with run_during(CloudService(make_dependencies(nats, kube=kube), settings).run()):
                address = f"127.0.0.1:{scraped.server_port}"
                yield CloudAccount(project=project, anchor=anchor, address=address, kubelets=kubelets)
        finally:
            scraped.shutdown()
            scraped.server_close()
            thread.join()
            await nats.close()
            if kube is not None:
                await kube.close()


def _open_kube(kubeconfig: Path) -> KubeApi:
    return KubeApi(load_kube_config(kubeconfig, {}), user_agent="talos-ccm/test", instance="test")
