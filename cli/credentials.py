"""The caller's own way to Kubernetes and to Talos machines, found where kubectl and talosctl look."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import KubeConfigError, load_kube_config
from libs.talos.api import TalosApi
from libs.talos.credentials import CredentialStore
from libs.talos.talosconfig import CredentialsError, list_candidate_files

TALOSCONFIG_HINT: Final = "name one with --talosconfig or TALOSCONFIG (the role os:reader suffices)"


class AccessError(Exception):
    """There is nobody to ask; says why, and what to do about it."""


def open_kube_client(kubeconfig: Path | None, context: str, *, user_agent: str) -> KubeApi:
    """The API server of that kubeconfig, else of kubectl's own. Raises AccessError."""
    usual = _home() / ".kube" / "config"
    if kubeconfig is None and not os.environ.get("KUBECONFIG") and usual.exists():
        kubeconfig = usual  # as kubectl does; the services look in their pod instead
    try:
        config = load_kube_config(kubeconfig, os.environ, context=context)
        return KubeApi(config, user_agent=user_agent, connections=1)
    except KubeConfigError as error:
        raise AccessError(f"no Kubernetes API to ask: {error}") from error


def open_talos_client(talosconfig: Path | None, endpoints: str, *, with_stage: bool = False) -> TalosApi:
    """The machines behind that talosconfig, else talosctl's own. Raises AccessError; dials nobody yet.

    `with_stage`: each look asks for the machine's stage, too.
    """
    paths = (talosconfig,) if talosconfig else list_candidate_files(os.environ, _home())
    store = CredentialStore(paths, endpoints=endpoints or os.environ.get("TALOS_ENDPOINTS", ""))
    try:
        problem = store.current(_now()).problem(_now())
    except CredentialsError as error:
        raise AccessError(f"no Talos API to ask: {error}; {TALOSCONFIG_HINT}") from error
    if problem:
        raise AccessError(f"no Talos API to ask: {store.problem}; {TALOSCONFIG_HINT}")
    return TalosApi(store, clock=_now, with_stage=with_stage)


def read_talos_certificate_expiry() -> datetime | None:
    """The end of the certificate in the talosconfig that a service finds by itself; None without one."""
    try:
        store = CredentialStore(list_candidate_files(os.environ, _home()), endpoints="127.0.0.1")
        return store.current(_now()).not_after
    except CredentialsError:
        return None


def _home() -> Path:
    return Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none


def _now() -> datetime:
    return datetime.now(UTC)
