"""The services' processes as Pods of Deployments, as in an installation of the chart."""

from __future__ import annotations

import importlib.metadata
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from libs.common.contract.services import METADATA
from libs.testbed.kubelet_node import format_time
from libs.testbed.kubelets import MERGE, STRATEGIC, KubeletFleet
from libs.testbed.service_permissions import ACCOUNT_NAMESPACE, ALL_IN_ONE
from libs.testbed.service_processes import ServiceProcesses
from libs.testbed.service_start import ROOT, get_module
from libs.testbed.sim_apiserver.server import SimApiServer

_CHART: Final = "talos-cloud-controller-manager"
_SECRET: Final = f"{ALL_IN_ONE}-talos-secrets"
_CONFIG_KEY: Final = "ccm-config.yaml"
_CONFIG_FILE: Final = f"/etc/talos/{_CONFIG_KEY}"  # where the chart mounts the file
_IMAGE: Final = f"{_CHART}:checkout"
_CORE: Final = f"/api/v1/namespaces/{ACCOUNT_NAMESPACE}"
_DEPLOYMENTS: Final = f"/apis/apps/v1/namespaces/{ACCOUNT_NAMESPACE}/deployments"
_ALL: Final = "all-in-one"


class ServicePods:
    """One Deployment with one Pod for each process, on the host network of this computer.

    Commands in a Pod (exec) run on this computer, with the credentials of the process.
    """

    def __init__(
        self,
        api_server: SimApiServer,
        admin: KubeletFleet,
        services: ServiceProcesses,
        *,
        nats_url: str,
        talosconfig: Path,
        flags: Sequence[str] = (),
        own_flags: Mapping[str, Sequence[str]] | None = None,
        cloud_config: Path | None = None,
    ) -> None:
        """`flags` and `own_flags` are those of the processes that operators see in the Pods.

        `cloud_config` is the file of the processes; its content is in a ConfigMap, as in the chart.
        """
        self._containers = api_server.containers
        self._admin = admin
        self._services = services
        self._env = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "TALOSCONFIG": str(talosconfig),
            **({"NATS_URL": nats_url} if nats_url else {}),
        }
        self._flags = tuple(flags)
        self._own_flags = own_flags or {}
        self._cloud_config = cloud_config
        self._written_config = ""
        self._is_ready: dict[str, bool] = {}  # as reported
        self._started_at = datetime.now(UTC)

    async def install(self) -> None:
        """Create the objects; no Pod is ready before `report`. Raises RequestRejected."""
        if self._cloud_config is not None:
            self._written_config = self._cloud_config.read_text(errors="replace")
            await self._admin.send("POST", f"{_CORE}/configmaps", body=self._build_config_map())
        await self._admin.send("POST", "/api/v1/namespaces/default/services", body=_TALOS_SERVICE)
        await self._admin.send(
            "POST",
            f"/apis/talos.dev/v1alpha1/namespaces/{ACCOUNT_NAMESPACE}/serviceaccounts",
            body=_TALOS_ACCOUNT,
        )
        await self._admin.send("POST", "/api/v1/namespaces/kube-system/pods", body=_MANAGER_POD)
        for name, child in self._services.children.items():
            deployment = self._build_deployment(name)
            await self._admin.send("POST", _DEPLOYMENTS, body=deployment)
            template, pod = deployment["spec"]["template"], f"{_get_object_name(name)}-0"
            body = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {**template["metadata"], "name": pod},
                "spec": {**template["spec"], "nodeName": socket.gethostname()},
            }
            await self._admin.send("POST", f"{_CORE}/pods", body=body)
            self._containers.add(ACCOUNT_NAMESPACE, pod, name, self._env, child.log)

    async def report(self) -> None:
        """Report which Pods are ready, and copy a changed file into the ConfigMap."""
        for name in self._services.children:
            is_ready = await self._services.is_ready(name)
            if self._is_ready.get(name) is not is_ready:
                await self._report_pod(name, is_ready=is_ready)
                self._is_ready[name] = is_ready
        if self._cloud_config is not None:
            try:
                text = self._cloud_config.read_text(errors="replace")
            except OSError:
                return  # an editor may be replacing it; the services report a file that stays away
            if text != self._written_config:
                self._written_config = text
                path = f"{_CORE}/configmaps/{ALL_IN_ONE}"
                await self._admin.send("PATCH", path, body=self._build_config_map(), content_type=MERGE)

    async def _report_pod(self, name: str, *, is_ready: bool) -> None:
        owner, now = _get_object_name(name), datetime.now(UTC)
        why = {} if is_ready else {"reason": "ContainersNotReady"}
        if not is_ready:
            why["message"] = f"containers with unready status: [{name}]"
        condition = {"status": "True" if is_ready else "False", "lastTransitionTime": format_time(now)} | why
        container = {
            "name": name,
            "ready": is_ready,
            "restartCount": 0,
            "image": _IMAGE,
            "imageID": "",
            "state": {"running": {"startedAt": format_time(self._started_at)}},
        }
        status = {
            "phase": "Running",
            "conditions": [{"type": kind, **condition} for kind in ("Ready", "ContainersReady")],
            "containerStatuses": [container],
        }
        path = f"{_CORE}/pods/{owner}-0/status"
        await self._admin.send("PATCH", path, body={"status": status}, content_type=STRATEGIC)
        counts = {"replicas": 1, "readyReplicas": int(is_ready), "availableReplicas": int(is_ready)}
        path = f"{_DEPLOYMENTS}/{owner}/status"
        await self._admin.send("PATCH", path, body={"status": counts}, content_type=MERGE)

    def _build_config_map(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": ALL_IN_ONE, "labels": _build_labels(_ALL)},
            "data": {_CONFIG_KEY: self._written_config},
        }

    def _build_deployment(self, name: str) -> dict[str, Any]:
        labels = _build_labels(name)
        volumes: list[dict[str, Any]] = []
        config = [f"--cloud-config={_CONFIG_FILE}"] if self._cloud_config else []
        if name in (METADATA.service, _ALL):
            volumes.append({"name": "talos-secrets", "secret": {"secretName": _SECRET}})
        if self._cloud_config is not None:
            volumes.append({"name": "cloud-config", "configMap": {"name": ALL_IN_ONE}})
        container = {
            "name": name,
            "image": _IMAGE,
            "command": ["python", "-m", get_module(name)],
            "args": [*self._flags, *self._own_flags.get(name, ()), *config],
        }
        spec = {
            "serviceAccountName": _get_object_name(name),
            "hostNetwork": True,
            "containers": [container],
            "volumes": volumes,
        }
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": _get_object_name(name), "labels": labels},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }


_TALOS_SERVICE: Final = {  # as a control plane of Talos creates it
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "talos"},
    "spec": {"clusterIP": "None", "ports": [{"name": "apid", "port": 50000}]},
}
_MANAGER_POD: Final = {  # as on Talos; the simulated API server does its work
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "kube-controller-manager"},
    "spec": {
        "containers": [
            {
                "name": "kube-controller-manager",
                "command": ["kube-controller-manager", "--controllers=*,-node-ipam-controller"],
            }
        ]
    },
}
_TALOS_ACCOUNT: Final = {
    "apiVersion": "talos.dev/v1alpha1",
    "kind": "ServiceAccount",
    "metadata": {"name": _SECRET},
    "spec": {"roles": ["os:reader"]},
}


def _get_object_name(process: str) -> str:
    """Return the name of Deployment and ServiceAccount, whose permissions `grant_permissions` creates."""
    return ALL_IN_ONE if process == _ALL else f"{ALL_IN_ONE}-{process}"


def _build_labels(process: str) -> dict[str, str]:
    labels = {
        "app.kubernetes.io/name": _CHART,
        "app.kubernetes.io/instance": ALL_IN_ONE,
        "app.kubernetes.io/version": importlib.metadata.version("talos-ccm"),
    }
    return labels if process == _ALL else labels | {"app.kubernetes.io/component": process}
