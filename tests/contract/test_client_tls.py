"""Every client of ours verifies a TLS server alike, on every version of Python."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from requests.exceptions import SSLError

from libs.clouds.http_reader import make_tls_context
from libs.common.bus.nats.client import Client, ConnectionTransport
from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.kube.credentials import tls_context
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.observability.tracing import make_session
from libs.talos.credentials import load_credentials
from libs.testbed.kube_credentials import build_kubeconfig
from libs.testbed.pki import CertificateAuthority, KeyPair, make_name, start_certificate
from tests.tcp_server import serve_tcp

NOW = datetime.now(UTC)


class Issuer(NamedTuple):
    """An authority as older tools make it: without key identifiers and key usages."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def issue(self, *names: str, valid: timedelta = timedelta(hours=1)) -> KeyPair:
        """A serving certificate that expires after that time; it does not identify its issuer's key."""
        key = ec.generate_private_key(ec.SECP256R1())
        sans = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        builder = builder_of("server", self.certificate.subject, key, valid=valid)
        builder = builder.add_extension(sans, critical=False)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return KeyPair(builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM), private)


def builder_of(
    name: str,
    issuer: x509.Name | None,
    key: ec.EllipticCurvePrivateKey,
    *,
    valid: timedelta = timedelta(hours=1),
) -> x509.CertificateBuilder:
    subject = make_name(name, [])
    return start_certificate(
        subject, issuer or subject, key.public_key(), NOW - timedelta(hours=1), NOW + valid
    )


def an_old_authority(name: str, parent: Issuer | None = None) -> Issuer:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = builder_of(name, parent.certificate.subject if parent else None, key).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=False
    )
    return Issuer(builder.sign(parent.key if parent else key, hashes.SHA256()), key)


ROOT = an_old_authority("root")


def kubernetes(ca_file: Path) -> ssl.SSLContext:
    return _load_kubernetes(ca_file, {"certificate-authority": str(ca_file)})


def kubernetes_with_the_authorities_of_the_system(ca_file: Path) -> ssl.SSLContext:
    return _load_kubernetes(ca_file, {})


def _load_kubernetes(ca_file: Path, trust: dict[str, str]) -> ssl.SSLContext:
    config = ca_file.with_suffix(".kubeconfig")
    config.write_bytes(build_kubeconfig("admin", {"server": "https://localhost", **trust}, {"token": "x"}))
    context = tls_context(load_kube_config(config, {}))
    assert context is not None
    return context


def nats(ca_file: Path) -> ssl.SSLContext:
    access = NatsAccess(servers=("tls://localhost",), service="watcher", tls_ca_file=ca_file)
    context = access.tls_context()
    assert context is not None
    return context


def nats_with_the_authorities_of_the_system(_: Path) -> ssl.SSLContext:
    return Client(ConnectionTransport(encrypted=True)).ssl_context


def talos(ca_file: Path) -> ssl.SSLContext:
    client = CertificateAuthority.make().issue_client()
    parts = {"ca": ca_file.read_bytes(), "crt": client.certificate, "key": client.key}
    fields = {name: base64.b64encode(text).decode() for name, text in parts.items()}
    context = {"endpoints": ["localhost"], **fields}
    text = msgspec.yaml.encode({"context": "default", "contexts": {"default": context}})
    return load_credentials(text, ca_file, endpoints="", written_at=NOW, digest="").tls


def cloud(_: Path) -> ssl.SSLContext:
    return make_tls_context()


CLIENTS: tuple[Callable[[Path], ssl.SSLContext], ...] = (
    kubernetes,
    kubernetes_with_the_authorities_of_the_system,
    nats,
    nats_with_the_authorities_of_the_system,
    talos,
    cloud,
)


@asynccontextmanager
async def a_server(pair: KeyPair, folder: Path) -> AsyncIterator[int]:
    """The port of a server with that certificate; it answers each request over HTTP with 200."""
    pem = folder / "server.pem"
    pem.write_bytes(pair.certificate + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readline():
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    async with serve_tcp(serve, tls=context) as port:
        yield port


async def handshake(context: ssl.SSLContext, port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    writer.transport.abort()


@pytest.fixture
def trusted() -> Issuer:
    return ROOT


@pytest.fixture
def ca_file(trusted: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a client trusts, given to it or as the system's."""
    path = tmp_path / "ca.crt"
    path.write_bytes(trusted.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    return path


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
async def test_an_authority_without_key_identifiers_is_trusted(
    client: Callable[[Path], ssl.SSLContext], ca_file: Path, tmp_path: Path
):
    async with a_server(ROOT.issue("localhost"), tmp_path) as port:
        await handshake(client(ca_file), port)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
@pytest.mark.parametrize("trusted", [an_old_authority("cluster", ROOT)])
async def test_a_trusted_authority_need_not_be_a_root(
    client: Callable[[Path], ssl.SSLContext], trusted: Issuer, ca_file: Path, tmp_path: Path
):
    """kubectl and talosctl accept that, too."""
    async with a_server(trusted.issue("localhost"), tmp_path) as port:
        await handshake(client(ca_file), port)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (an_old_authority("root").issue("localhost"), "signature failure|unable to get local issuer"),
        (ROOT.issue("another"), "Hostname mismatch"),
        (ROOT.issue("localhost", valid=-timedelta(minutes=1)), "certificate has expired"),
    ],
    ids=["of another authority", "for another name", "expired"],
)
async def test_a_certificate_is_refused(
    client: Callable[[Path], ssl.SSLContext], pair: KeyPair, reason: str, ca_file: Path, tmp_path: Path
):
    async with a_server(pair, tmp_path) as port:
        with pytest.raises(ssl.SSLCertVerificationError, match=reason):
            await handshake(client(ca_file), port)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_no_client_accepts_less_than_tls_1_2(client: Callable[[Path], ssl.SSLContext], ca_file: Path):
    assert client(ca_file).minimum_version == ssl.TLSVersion.TLSv1_2


async def test_the_collector_of_traces_is_verified_alike(ca_file: Path, tmp_path: Path):
    def post(port: int) -> int:
        with make_session() as session:
            return session.post(f"https://localhost:{port}", verify=str(ca_file), timeout=5).status_code

    async with a_server(ROOT.issue("localhost"), tmp_path) as port:
        assert await asyncio.to_thread(post, port) == 200
    async with a_server(an_old_authority("root").issue("localhost"), tmp_path) as port:
        with pytest.raises(SSLError, match=r"signature failure|unable to get local issuer"):
            await asyncio.to_thread(post, port)
    async with a_server(ROOT.issue("another"), tmp_path) as port:
        with pytest.raises(SSLError, match=r"Hostname mismatch|doesn't match"):
            await asyncio.to_thread(post, port)
