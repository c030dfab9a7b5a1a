"""A client of the Kubernetes API with the permissions of one service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.common.contract.services import ServiceSpec
from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.service_permissions import get_user_name
from libs.testbed.service_processes import grant_permissions


@asynccontextmanager
async def open_api_of(
    spec: ServiceSpec, control_plane: ControlPlane, kubelets: KubeletFleet
) -> AsyncIterator[KubeApi]:
    """Grant the permissions of every service; a client as the user of that service."""
    await grant_permissions(kubelets)
    config = load_kube_config(control_plane.kubeconfig(get_user_name(spec)), {})
    api = KubeApi(config, user_agent="talos-ccm/test", instance="test")
    try:
        yield api
    finally:
        await api.close()
