"""The caller's credentials for Kubernetes and Talos, from the same places as kubectl and talosctl."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from cli.cluster.query import ClusterQuery
from cli.command_exit import CommandError
from libs.common.clocks import utc_now
from libs.common.kube.api import KubeApi
from libs.common.kube.kube_config import KubeConfigError
from libs.common.kube.load_kube_config import load_kube_config
from libs.talos.api import TalosApi
from libs.talos.credentials import CredentialStore
from libs.talos.talosconfig import CredentialsError, list_candidate_files

TALOSCONFIG_HINT: Final = "set --talosconfig or TALOSCONFIG (the role os:reader suffices)"


class AccessError(CommandError):
    """No API can be queried; the text gives the reason and what to do."""


@asynccontextmanager
async def open_kube_client(query: ClusterQuery, *, command: str) -> AsyncIterator[KubeApi]:
    """Open a client for this kubeconfig, or for kubectl's default. Raises AccessError.

    `command` names the caller in the API server's audit log.
    """
    kubeconfig, usual = query.kubeconfig, find_home() / ".kube" / "config"
    if kubeconfig is None and not os.environ.get("KUBECONFIG") and usual.exists():
        kubeconfig = usual  # as kubectl does; services use their pod's credentials instead
    try:
        config = load_kube_config(kubeconfig, os.environ, context=query.context)
        kube = KubeApi(config, user_agent=f"talos-ccm-{command}", connections=1)
    except KubeConfigError as error:
        raise AccessError(f"cannot access the Kubernetes API: {error}") from error
    try:
        yield kube
    finally:
        await kube.close()


@asynccontextmanager
async def open_talos_client(query: ClusterQuery, *, with_stage: bool = False) -> AsyncIterator[TalosApi]:
    """Open a client for this talosconfig, or for talosctl's default. Raises AccessError.

    `with_stage`: each query also reads the machine stage.
    """
    talosconfig, endpoints = query.talosconfig, query.talos_endpoints
    paths = (talosconfig,) if talosconfig else list_candidate_files(os.environ, find_home())
    store = CredentialStore(paths, endpoints=endpoints or os.environ.get("TALOS_ENDPOINTS", ""))
    try:
        problem = store.current(utc_now()).problem(utc_now())
    except CredentialsError as error:
        raise AccessError(f"cannot access the Talos API: {error}; {TALOSCONFIG_HINT}") from error
    if problem:
        raise AccessError(f"cannot access the Talos API: {store.problem}; {TALOSCONFIG_HINT}")
    talos = TalosApi(store, clock=utc_now, with_stage=with_stage)
    try:
        yield talos
    finally:
        await talos.close()


def find_home() -> Path:
    """Return the home directory; "~" itself where there is none."""
    return Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none
