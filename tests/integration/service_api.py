"""A client of the Kubernetes API with the permissions of one service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.common.contract.services import ServiceSpec
from libs.common.kube.api import KubeApi
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.service_permissions import get_user_name
from libs.testbed.service_processes import grant_permissions
from tests.kube_loopback import open_api_by


@asynccontextmanager
async def open_api_of(
    spec: ServiceSpec, control_plane: ControlPlane, kubelets: KubeletFleet
) -> AsyncIterator[KubeApi]:
    """Grant the permissions of every service; a client as the user of that service."""
    await grant_permissions(kubelets)
    async with open_api_by(control_plane.kubeconfig(get_user_name(spec)), instance="test") as api:
        yield api
