"""One API server and one identity: the result of reading the configuration."""

from pathlib import Path

import msgspec


class KubeConfigError(Exception):
    """The configuration cannot be used. The text names the file, the context and the field."""


class CredentialSource(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate, key or token: in a file, which is read again when it changes, or inline."""

    field: str  # its name in messages: "/path/config, user admin, client-key"
    file: Path | None = None
    text: str = ""

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


class KubeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One API server and one identity."""

    source: str  # "/path/config, context admin@talos", for messages
    server: str  # scheme://host:port[/prefix], without a trailing slash
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: CredentialSource | None = None  # None: the system's authorities
    client_certificate: CredentialSource | None = None
    client_key: CredentialSource | None = None
    token: CredentialSource | None = None
    exec_plugin: ExecPlugin | None = None
