"""One API server and one identity: the result of reading the configuration."""

from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import msgspec


class KubeConfigError(Exception):
    """The configuration cannot be used. The text names the file, the context and the field."""


class CredentialSource(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate, key or token: in a file, which is read again when it changes, or inline."""

    field: str  # its name in messages: "/path/config, user admin, client-key"
    file: Path | None = None
    text: str = ""
    expires_at: datetime | None = None  # known of an id-token only

    def __repr__(self) -> str:
        return f"CredentialSource({self.field!r})"  # the text may be a key

    def read(self) -> str:
        """Return the current text without surrounding whitespace. Raises KubeConfigError."""
        if self.file is None:
            return self.text.strip()
        try:
            return self.file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise KubeConfigError(f"{self.field}: cannot read {self.file}: {error}") from error


class ExecPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """A program that prints credentials (client.authentication.k8s.io)."""

    field: str
    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}  # its whole environment
    install_hint: str = ""


class ExecCredential(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a plugin printed: a token, or a client certificate with its key, and their expiry."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None

    def __repr__(self) -> str:
        return f"ExecCredential(until {self.expiration_timestamp})"  # a task's repr shows its result


class KubeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One API server and one identity."""

    source: str  # "/path/config, context admin@talos", for messages
    server: str  # scheme://host:port[/prefix], without a trailing slash
    proxy_url: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: CredentialSource | None = None  # None: the system's authorities
    client_certificate: CredentialSource | None = None
    client_key: CredentialSource | None = None
    token: CredentialSource | None = None
    exec_plugin: ExecPlugin | None = None


def parse_server_url(text: str, field: str) -> str:
    """Return the URL of an API server, without a trailing slash. Raises KubeConfigError."""
    if "@" in text:  # every message about this server would show it
        raise KubeConfigError(f"{field}: user name and password in the URL are not supported")
    if not is_http_url(text):
        raise KubeConfigError(f"{field}: {text!r} is not a URL such as https://10.0.0.1:6443")
    return text.rstrip("/")


def is_http_url(text: str) -> bool:
    """Return whether the text is a URL of HTTP or HTTPS with a host."""
    try:
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
