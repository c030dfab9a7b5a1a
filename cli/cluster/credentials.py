"""The caller's credentials for Kubernetes and Talos, from the same places as kubectl and talosctl."""

import os
from datetime import datetime
from pathlib import Path
from typing import Final

from libs.common.clocks import utc_now
from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import KubeConfigError, load_kube_config
from libs.talos.api import TalosApi
from libs.talos.credentials import CredentialStore
from libs.talos.talosconfig import CredentialsError, list_candidate_files

TALOSCONFIG_HINT: Final = "set --talosconfig or TALOSCONFIG (the role os:reader suffices)"


class AccessError(Exception):
    """No API can be queried; the text gives the reason and what to do."""


def open_kube_client(kubeconfig: Path | None, context: str, *, user_agent: str) -> KubeApi:
    """Open a client for this kubeconfig, or for kubectl's default. Raises AccessError."""
    usual = _home() / ".kube" / "config"
    if kubeconfig is None and not os.environ.get("KUBECONFIG") and usual.exists():
        kubeconfig = usual  # as kubectl does; services use their pod's credentials instead
    try:
        config = load_kube_config(kubeconfig, os.environ, context=context)
        return KubeApi(config, user_agent=user_agent, connections=1)
    except KubeConfigError as error:
        raise AccessError(f"cannot access the Kubernetes API: {error}") from error


def open_talos_client(talosconfig: Path | None, endpoints: str, *, with_stage: bool = False) -> TalosApi:
    """Open a client for this talosconfig, or for talosctl's default; does not dial yet.

    Raises AccessError. `with_stage`: each query also reads the machine stage.
    """
    paths = (talosconfig,) if talosconfig else list_candidate_files(os.environ, _home())
    store = CredentialStore(paths, endpoints=endpoints or os.environ.get("TALOS_ENDPOINTS", ""))
    try:
        problem = store.current(utc_now()).problem(utc_now())
    except CredentialsError as error:
        raise AccessError(f"cannot access the Talos API: {error}; {TALOSCONFIG_HINT}") from error
    if problem:
        raise AccessError(f"cannot access the Talos API: {store.problem}; {TALOSCONFIG_HINT}")
    return TalosApi(store, clock=utc_now, with_stage=with_stage)


def read_talos_certificate_expiry() -> datetime | None:
    """Return the expiry of the certificate in a service's own talosconfig; None without one."""
    try:
        store = CredentialStore(list_candidate_files(os.environ, _home()), endpoints="127.0.0.1")
        return store.current(utc_now()).not_after
    except CredentialsError:
        return None


def _home() -> Path:
    return Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none
