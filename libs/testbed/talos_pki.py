"""The certificates of the Talos API, in the formats that Talos writes."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric import ed25519

from libs.testbed.pki import CertificateAuthority, KeyPair, write_private


class TalosPki:
    """The CA of the Talos API and its certificates, in the formats that Talos writes."""

    def __init__(self, directory: Path, names: Sequence[str], *, writes_ca_key: bool = False) -> None:
        """Write ca.crt, server.crt and server.key into `directory`, for servers with these names.

        `writes_ca_key`: also write ca.key, for a program that issues certificates itself.
        """
        self.directory = directory
        self._names = tuple(names)
        self._writes_ca_key = writes_ca_key
        directory.mkdir(parents=True, exist_ok=True)
        self.rotate()

    def rotate(self) -> None:
        """Replace the CA and the serving certificate; older client certificates become invalid."""
        self.authority = CertificateAuthority.make(
            organization="talos", key=ed25519.Ed25519PrivateKey.generate()
        )
        server = self.authority.issue_server(self._names, common_name="talos-machines")
        if self._writes_ca_key:  # first: a program that notices the new certificate reads the key, too
            write_private(self.directory / "ca.key", self.authority.pair.key)
        write_private(self.directory / "ca.crt", self.authority.pem)
        server.write(self.directory, "server")

    def client(
        self, roles: Sequence[str], *, lifetime: timedelta, issued_at: datetime | None = None
    ) -> KeyPair:
        """Return a client certificate with its roles as organizations; the key has the PEM label of Talos."""
        pair = self.authority.issue_client(
            organizations=sorted(roles), lifetime=lifetime, issued_at=issued_at
        )
        return KeyPair(pair.certificate, pair.key.replace(b" PRIVATE KEY-", b" ED25519 PRIVATE KEY-"))

    def talosconfig(
        self,
        endpoints: Sequence[str],
        *,
        roles: Sequence[str] = ("os:reader",),
        lifetime: timedelta = timedelta(hours=6),
        issued_at: datetime | None = None,
    ) -> str:
        """Return a talosconfig as the Talos ServiceAccount controller writes it into its Secret."""
        client = self.client(roles, lifetime=lifetime, issued_at=issued_at)
        context = {
            "endpoints": list(endpoints),
            "ca": _base64(self.authority.pem),
            "crt": _base64(client.certificate),
            "key": _base64(client.key),
        }
        return msgspec.yaml.encode({"context": "default", "contexts": {"default": context}}).decode()


def _base64(text: bytes) -> str:
    return base64.b64encode(text).decode()
