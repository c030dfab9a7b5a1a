"""Parses the talosconfig file, and lists its default paths as Talos' client does."""

import base64
import binascii
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from libs.common.contract.ip_addresses import parse_ip
from libs.common.safe_yaml import YamlError, read_yaml

APID_PORT: Final = 50000
# Talos labels its PKCS#8 keys in a way that OpenSSL does not know.
_TALOS_KEY_LABEL: Final = b"ED25519 PRIVATE KEY-----"
_PKCS8_KEY_LABEL: Final = b"PRIVATE KEY-----"
SERVICE_ACCOUNT_FILE: Final = Path("/var/run/secrets/talos.dev/config")
_MAX_SHOWN_CHARS: Final = 80  # characters of an identity
_PORT: Final = re.compile(r"[0-9]{1,5}\Z")
_HOST_NAME: Final = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?\.?\Z")


class CredentialsError(Exception):
    """There are no usable credentials; the text names the file, the context and the field."""


class Endpoint(msgspec.Struct, frozen=True):
    """The address of an apid."""

    host: str  # an IP address (IPv6 without brackets) or a name
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class TalosConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One context of a talosconfig; the PEM texts are decoded but not validated."""

    context: str
    cluster: str  # "" in the file that a cluster writes for its service accounts
    endpoints: tuple[Endpoint, ...]
    ca: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"TalosConfig({self.context!r})"  # without the key


class _Context(msgspec.Struct, rename={"certificate": "crt"}):
    endpoints: list[str] | None = None
    target: str = ""  # deprecated by Talos, appended to the endpoints
    ca: str | None = ""
    certificate: str | None = ""
    key: str | None = ""
    cluster: str = ""
    auth: object = None  # for proxies before apid: basic, siderov1; not validated


class _File(msgspec.Struct):
    context: str = ""
    contexts: dict[str, _Context | None] | None = None


def list_candidate_files(environment: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Return candidate paths of the talosconfig: the first existing one is used, also with TALOSCONFIG."""
    talos_home = Path(environment.get("TALOS_HOME", ""))
    named = environment.get("TALOSCONFIG", "")
    usual = talos_home / "config" if talos_home.is_absolute() else home / ".talos" / "config"
    return (*([Path(named)] if named else []), usual, SERVICE_ACCOUNT_FILE)


def parse_talosconfig(text: bytes, *, source: str, endpoints: str = "") -> TalosConfig:
    """Parse the current context. `endpoints` (TALOS_ENDPOINTS, comma-separated) overrides the file's."""
    name, context = _current_context(text, source)
    where = f"{source}: context {name!r}"
    _refuse_auth_alone(context, where)
    named = [part.strip() for part in endpoints.split(",") if part.strip()]
    listed = named or [*(context.endpoints or ()), *([context.target] if context.target else [])]
    if not listed:
        raise CredentialsError(f"{where}: field endpoints: no Talos endpoint, and TALOS_ENDPOINTS is empty")
    origin = "TALOS_ENDPOINTS" if named else f"{where}: field endpoints"
    return TalosConfig(
        context=name,
        cluster=context.cluster,
        endpoints=tuple(dict.fromkeys(_endpoint(one, origin) for one in listed)),
        ca=_pem(context.ca, f"{where}: field ca"),
        certificate=_pem(context.certificate, f"{where}: field crt"),
        key=_pem(context.key, f"{where}: field key").replace(_TALOS_KEY_LABEL, _PKCS8_KEY_LABEL),
    )


def _current_context(text: bytes, source: str) -> tuple[str, _Context]:
    if not text.strip():
        raise CredentialsError(f"{source}: the file is empty")
    try:
        file = read_yaml(text, _File)
    except YamlError as error:
        raise CredentialsError(f"{source}: not a talosconfig: {error}") from error
    contexts = file.contexts or {}
    if not file.context:
        raise CredentialsError(f"{source}: field context: no current context (existing: {_names(contexts)})")
    context = contexts.get(file.context)
    if context is None:
        raise CredentialsError(f"{source}: no context {file.context!r} (existing: {_names(contexts)})")
    return file.context, context


def _refuse_auth_alone(context: _Context, where: str) -> None:
    """Reject `auth` without a certificate: only a proxy before apid uses it, such as Omni's."""
    auth = context.auth
    if not isinstance(auth, dict) or (context.certificate or "").strip() or (context.key or "").strip():
        return
    kind = next((each for each in ("siderov1", "basic") if each in auth), "")
    if not kind:
        return
    keys = ", nor is a service account key (OMNI_SERVICE_ACCOUNT_KEY)" if kind == "siderov1" else ""
    raise CredentialsError(
        f"{where}: auth.{kind}{_identity(auth[kind])} alone is not supported{keys}: use a talosconfig with a "
        "client certificate (fields ca, crt, key), such as Talos writes for a ServiceAccount of talos.dev"
    )


def _identity(auth: object) -> str:
    identity = auth.get("identity") if isinstance(auth, dict) else None
    return f" ({identity[:_MAX_SHOWN_CHARS]!a})" if isinstance(identity, str) and identity else ""


def _names(contexts: Mapping[str, object]) -> str:
    return ", ".join(sorted(contexts)) or "none"


def _pem(text: str | None, field: str) -> bytes:
    if text is None or not text.strip():
        raise CredentialsError(f"{field}: missing; a client certificate with its key and CA is required")
    try:
        decoded = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise CredentialsError(f"{field}: is not base64: {error}") from error
    if b"-----BEGIN " not in decoded:
        raise CredentialsError(f"{field}: the decoded base64 holds no PEM block")
    return decoded


def _endpoint(text: str, origin: str) -> Endpoint:
    """Parse `host` or `host:port`, IPv6 with or without brackets, each with an optional scheme."""
    scheme, _, rest = text.rpartition("://")
    host, port = _host_and_port(rest.rstrip("/"))
    if not port:
        port = "443" if scheme == "https" else str(APID_PORT)
    if not (_PORT.match(port) and 0 < int(port) < 65536):
        raise CredentialsError(f"{origin}: {text!r} has no usable port")
    if not (parse_ip(host) is not None or _HOST_NAME.match(host)):
        raise CredentialsError(f"{origin}: {text!r} is neither an address nor a host name")
    return Endpoint(host=host, port=int(port))


def _host_and_port(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port.removeprefix(":")
    if text.count(":") > 1:
        return text, ""
    host, _, port = text.partition(":")
    return host, port


def read_client_certificate(
    certificate: bytes, key: bytes, *, where: str
) -> tuple[x509.Certificate, tuple[str, ...]]:
    """Return a certificate and its Talos roles ("os:reader"), whose key is checked, too.

    `where` is file and context for errors. Raises CredentialsError.
    """
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        public = parsed.public_key()
        roles = tuple(str(a.value) for a in parsed.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME))
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm) as error:
        raise CredentialsError(f"{where}: field crt: the certificate is not readable: {error}") from error
    try:
        private = load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CredentialsError(f"{where}: field key: the private key is not readable: {error}") from error
    if private.public_key() != public:
        raise CredentialsError(f"{where}: field key: the key does not match the certificate in field crt")
    return parsed, roles
