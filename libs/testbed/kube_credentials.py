"""Client certificates and kubeconfigs for any user of an API server, as files of its run directory."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from libs.common.client_tls import make_client_context
from libs.testbed.pki import CertificateAuthority

_ADMIN_GROUPS = ("system:masters",)
# The names in the API server's certificate, as Talos creates it for the control plane machine cp-1: the local
# address, the Service, host name and virtual IP of the endpoint, and the machine's names and addresses.
API_SERVER_HOSTS = (
    "127.0.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.corp.internal",
    "10.96.0.1",
    "api.prod.example.com",
    "10.255.0.10",
    "cp-1",
    "cp-1.example.com",
    "10.255.0.1",
    "203.0.113.1",
)


class KubeCredentials:
    """The credentials of one authority for one server; files of a user are created on first use."""

    def __init__(self, run_dir: Path, server: str) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.run_dir = run_dir
        self.server = server
        self.authority = CertificateAuthority.make(common_name="kubernetes")
        self.ca_file = run_dir / "ca.crt"
        self._issued: set[str] = set()
        self.authority.pair.write(run_dir, "ca")

    def client(self, user: str = "admin", groups: Sequence[str] = ()) -> tuple[Path, Path]:
        """Return the files of a client certificate and its key; "admin" without groups may do everything."""
        groups = tuple(groups) or (_ADMIN_GROUPS if user == "admin" else ())
        name = "_".join((user, *groups)).replace(":", "-").replace("/", "-")
        certificate, key = self.run_dir / f"{name}.crt", self.run_dir / f"{name}.key"
        if name not in self._issued:  # files of an earlier run are of another authority
            self._issued.add(name)
            self.authority.issue_client(common_name=user, organizations=groups).write(self.run_dir, name)
        return certificate, key

    def kubeconfig(self, user: str = "admin", groups: Sequence[str] = ()) -> Path:
        """Return a kubeconfig for `user` in `groups`, with a client certificate."""
        certificate, key = self.client(user, groups)
        path = certificate.with_suffix(".kubeconfig")
        cluster = {"server": self.server, "certificate-authority": str(self.ca_file)}
        identity = {"client-certificate": str(certificate), "client-key": str(key)}
        if not path.exists():  # a process that starts may be reading it
            path.write_bytes(build_kubeconfig(user, cluster, identity))
        return path

    def ssl_context(self, user: str = "admin", groups: Sequence[str] = ()) -> ssl.SSLContext:
        """Return an SSL context with the client certificate of `user` in `groups`; "" has none."""
        context = make_client_context()
        context.load_verify_locations(cafile=self.ca_file)
        if user:
            context.load_cert_chain(*self.client(user, groups))
        return context


def build_kubeconfig(user: str, cluster: Mapping[str, str], identity: Mapping[str, str]) -> bytes:
    """Return a kubeconfig with one context for this cluster and this user."""
    name = "testbed"
    return msgspec.yaml.encode(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": user, "user": identity}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        }
    )
