"""`python -m libs.testbed.compose.credentials`: the credentials of each container, in separate folders.

Existing credentials stay; a new cluster needs new volumes.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from libs.common.contract.services import NAMED_SERVICES
from libs.testbed.compose.addresses import API_SERVER, FOLDER, TALOS
from libs.testbed.kube_credentials import build_kubeconfig
from libs.testbed.pki import CertificateAuthority, TalosPki, make_service_account_keys, write_private
from libs.testbed.service_permissions import get_user_name

LIFETIME: Final = timedelta(days=1)
_API_SERVER_NAMES: Final = ("kube-apiserver", "localhost", "127.0.0.1", "kubernetes.default.svc")
_MASTERS: Final = ("system:masters",)
_MARKER: Final = "made"  # written last


def write_credentials(folder: Path, services: Collection[str]) -> None:
    """Write the credentials of the control plane, the machines, the nodes and these services."""
    authority = CertificateAuthority.make(common_name="kubernetes")
    _write_control_plane(folder / "control-plane", authority)
    _write_admin(folder / "nodes", authority)
    talos = TalosPki(folder / "talos", ["talos", "localhost", "127.0.0.1"])
    for spec in (spec for spec in NAMED_SERVICES if spec.service in services):
        own = folder / spec.service
        if "talosconfig" in spec.secrets:
            write_private(own / "talosconfig", talos.talosconfig([TALOS], lifetime=LIFETIME).encode())
        if any(not rule.flag for rule in spec.policy_rules):
            kubeconfig = _make_kubeconfig(authority, get_user_name(spec), API_SERVER)
            write_private(own / "kubeconfig", kubeconfig)
        _write_nats_credentials(folder / "keys", own)


def _write_nats_credentials(keys: Path, service: Path) -> None:
    """Copy the credentials that `python -m services.bootstrap` has created for the service."""
    write_private(service / "seed.nk", (keys / f"compose-nats-{service.name}" / "seed.nk").read_bytes())
    write_private(service / "ca.crt", (keys / "ca.crt").read_bytes())


def _write_control_plane(folder: Path, authority: CertificateAuthority) -> None:
    authority.pair.write(folder, "ca")
    authority.issue_server(_API_SERVER_NAMES).write(folder, "apiserver")
    make_service_account_keys().write(folder, "service-account")
    manager = _make_kubeconfig(authority, "system:kube-controller-manager", API_SERVER)
    write_private(folder / "controller-manager.kubeconfig", manager)


def _write_admin(folder: Path, authority: CertificateAuthority) -> None:
    write_private(folder / "ca.crt", authority.pem)
    authority.issue_client(common_name="admin", organizations=_MASTERS).write(folder, "admin")
    published = _make_kubeconfig(authority, "admin", "https://127.0.0.1:16443", _MASTERS)
    write_private(folder / "kubeconfig", published)


def _make_kubeconfig(
    authority: CertificateAuthority, user: str, server: str, groups: Sequence[str] = ()
) -> bytes:
    pair = authority.issue_client(common_name=user, organizations=groups, lifetime=LIFETIME)
    identity = {"client-certificate-data": _text(pair.certificate), "client-key-data": _text(pair.key)}
    cluster = {"server": server, "certificate-authority-data": _text(authority.pem)}
    return build_kubeconfig(user, cluster, identity)


def _text(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def main() -> None:
    """Create the credentials unless they exist. Arguments: the services that get some."""
    made = FOLDER / "control-plane" / _MARKER
    if made.exists():
        print("credentials: exist already")
        return
    write_credentials(FOLDER, sys.argv[1:])
    made.touch()
    print(f"credentials: created, valid for {LIFETIME.days * 24} h")


if __name__ == "__main__":
    main()
