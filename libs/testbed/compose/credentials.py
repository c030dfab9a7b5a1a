"""`python -m libs.testbed.compose.credentials`: every holder's credentials, each in a folder of its own.

Whoever starts again with the same volumes finds what there is; a new cluster needs new volumes.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from libs.common.service_spec import SERVICES
from libs.testbed.compose.cluster import API_SERVER, FOLDER, TALOS
from libs.testbed.pki import Authority, KeyPair, service_account_keys
from libs.testbed.service_rights import user_of
from libs.testbed.talos_pki import TalosPki, write_private

LIFETIME: Final = timedelta(days=1)
_API_SERVER_NAMES: Final = ("kube-apiserver", "localhost", "127.0.0.1", "kubernetes.default.svc")
_MASTERS: Final = ("system:masters",)
_MADE: Final = "made"  # written last


def make(folder: Path, services: Iterable[str]) -> None:
    """Write what the control plane, the machines, the nodes and these services need."""
    authority = Authority.make(common_name="kubernetes")
    _control_plane(folder / "control-plane", authority)
    _admin(folder / "nodes", authority)
    talos = TalosPki(folder / "talos", ["talos", "localhost", "127.0.0.1"])
    users: dict[str, str] = {wiring.service: user_of(wiring) for wiring in SERVICES}
    for service in services:
        if service == "metadata":  # no Kubernetes right, and nobody else has a Talos credential
            text = talos.talosconfig([TALOS], lifetime=LIFETIME)
            write_private(folder / service / "talosconfig", text.encode())
        else:
            write_private(folder / service / "kubeconfig", _kubeconfig(authority, users[service], API_SERVER))
        _for_nats(folder / "keys", folder / service)


def _for_nats(keys: Path, service: Path) -> None:
    """What `python -m services.bootstrap` has made for it."""
    write_private(service / "seed.nk", (keys / f"compose-nats-{service.name}" / "seed.nk").read_bytes())
    write_private(service / "ca.crt", (keys / "ca.crt").read_bytes())


def _control_plane(folder: Path, authority: Authority) -> None:
    _write(folder, "ca", authority.pair)
    _write(folder, "apiserver", authority.server(_API_SERVER_NAMES))
    _write(folder, "service-account", service_account_keys())
    manager = _kubeconfig(authority, "system:kube-controller-manager", API_SERVER)
    write_private(folder / "controller-manager.kubeconfig", manager)


def _admin(folder: Path, authority: Authority) -> None:
    write_private(folder / "ca.crt", authority.pem)
    _write(folder, "admin", authority.client(common_name="admin", organizations=_MASTERS))
    published = _kubeconfig(authority, "admin", "https://127.0.0.1:16443", _MASTERS)
    write_private(folder / "kubeconfig", published)


def _kubeconfig(authority: Authority, user: str, server: str, groups: Sequence[str] = ()) -> bytes:
    pair = authority.client(common_name=user, organizations=groups, lifetime=LIFETIME)
    identity = {"client-certificate-data": _text(pair.certificate), "client-key-data": _text(pair.key)}
    cluster = {"server": server, "certificate-authority-data": _text(authority.pem)}
    return msgspec.yaml.encode(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "compose",
            "clusters": [{"name": "compose", "cluster": cluster}],
            "users": [{"name": user, "user": identity}],
            "contexts": [{"name": "compose", "context": {"cluster": "compose", "user": user}}],
        }
    )


def _write(folder: Path, name: str, pair: KeyPair) -> None:
    write_private(folder / f"{name}.crt", pair.certificate)
    write_private(folder / f"{name}.key", pair.key)


def _text(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def main() -> None:
    """Make them once. Arguments: the services that get some."""
    made = FOLDER / "control-plane" / _MADE
    if made.exists():
        print("credentials: there are some already")
        return
    make(FOLDER, sys.argv[1:])
    made.touch()
    print(f"credentials: made, for {LIFETIME.days * 24} h")


if __name__ == "__main__":
    main()
