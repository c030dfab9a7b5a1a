"""Loads one context of one or more kubeconfig files (clientcmd v1): the fields that this client reads."""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from libs.common.kube.kube_config import (
    CredentialSource,
    ExecPlugin,
    KubeConfig,
    KubeConfigError,
    is_http_url,
    parse_server_url,
)
from libs.common.safe_yaml import YamlError, read_yaml


class KubeconfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file; lists may be null, as `kubectl config` writes them when they are empty."""

    clusters: tuple["_Named", ...] | None = None
    users: tuple["_Named", ...] | None = None
    contexts: tuple["_Named", ...] | None = None
    current_context: str | None = msgspec.field(name="current-context", default=None)


class _Named(msgspec.Struct, frozen=True):
    name: str


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster and a user, by name."""

    cluster: str = ""
    user: str = ""


class Cluster(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The address of an API server."""

    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _ExecVariable(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class Exec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A credential plugin; its fields are in camel case, unlike their surroundings."""

    api_version: str
    command: str
    args: tuple[str, ...] | None = None
    env: tuple[_ExecVariable, ...] | None = None
    install_hint: str = ""
    interactive_mode: str = ""
    provide_cluster_info: bool = False


class AuthProvider(msgspec.Struct, frozen=True, kw_only=True):
    """The predecessor of plugins; kubectl has kept only oidc."""

    name: str = ""
    config: dict[str, str] | None = None


class User(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The identity of a client."""

    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    exec: Exec | None = None
    auth_provider: AuthProvider | None = None
    username: str = ""
    impersonate: str = msgspec.field(name="as", default="")
    impersonate_uid: str = msgspec.field(name="as-uid", default="")
    impersonate_groups: tuple[str, ...] | None = msgspec.field(name="as-groups", default=None)
    impersonate_extra: dict[str, Any] | None = msgspec.field(name="as-user-extra", default=None)

    def list_unsupported(self) -> Iterator[str]:
        """Yield the unsupported fields that have a value: ignoring them could change the identity."""
        if self.username:
            yield "username: Kubernetes has no basic authentication any more"
        if self.impersonate or self.impersonate_uid or self.impersonate_groups or self.impersonate_extra:
            yield "as: impersonation is not supported; choose a context without it"
        if self.auth_provider and self.auth_provider.name != "oidc":
            name = self.auth_provider.name
            yield f"auth-provider {name!r}: kubectl 1.26 removed it; choose a credential plugin (exec)"
        if self.exec and self.exec.interactive_mode == "Always":
            yield "exec: interactiveMode Always is not supported, because the plugin has no terminal"
        if self.exec and self.exec.provide_cluster_info:
            yield "exec: provideClusterInfo is not supported"


T = TypeVar("T")
Entry = TypeVar("Entry", Cluster, Context, User)

_SECTIONS: Final = ("clusters", "users", "contexts")


class _NamedEntry(NamedTuple):
    """One cluster, user or context of a file."""

    value: dict[str, Any]
    path: Path


def load_context(
    paths: Sequence[Path], context_name: str, origin: str, environment: Mapping[str, str]
) -> KubeConfig:
    """Load the named context, or the current one if the name is "". Raises KubeConfigError.

    `origin` names the flag or variable with the paths; `environment` is for an exec plugin.
    """
    # As for kubectl, the first current-context of several files wins.
    current = [name for path in paths if (name := _read(path, origin, KubeconfigFile).current_context)]
    entries = _list_entries(paths, origin)
    where = ":".join(map(str, paths))
    name = context_name or next(iter(current), "")
    if not name:
        raise KubeConfigError(f"{where}: current-context is not set")
    _, context = _find(entries, "context", name, where, Context)
    source = f"{where}, context {name}"
    if not context.cluster:
        raise KubeConfigError(f"{source}: names no cluster")
    at, cluster = _find(entries, "cluster", context.cluster, source, Cluster)
    who, user = _Place(source, Path()), User()  # anonymous
    if context.user:
        who, user = _find(entries, "user", context.user, source, User)
    for problem in user.list_unsupported():
        raise KubeConfigError(f"{who.name}, {problem}")
    return _assemble(source, at, cluster, who, user, environment=environment)


class _Place(msgspec.Struct, frozen=True):
    """The file of an entry: for messages and relative paths."""

    name: str
    folder: Path

    def credential(self, field: str, file: str, data: str) -> CredentialSource | None:
        """Return the source as Kubernetes does: `<field>-data` before the file; None without either."""
        label = f"{self.name}, {field}"
        if data:
            return CredentialSource(field=f"{label}-data", text=_decode_base64(data, f"{label}-data"))
        return CredentialSource(field=label, file=self.folder / file) if file else None


def _assemble(
    source: str, at: _Place, cluster: Cluster, who: _Place, user: User, *, environment: Mapping[str, str]
) -> KubeConfig:
    # aiohttp would verify a proxy with TLS by the authority of the cluster.
    if cluster.proxy_url and not (is_http_url(cluster.proxy_url) and cluster.proxy_url.startswith("http:")):
        raise KubeConfigError(f"{at.name}, proxy-url: only an http:// proxy is supported")
    config = KubeConfig(
        source=source,
        server=parse_server_url(cluster.server, f"{at.name}, server"),
        proxy_url=cluster.proxy_url,
        tls_server_name=cluster.tls_server_name,
        insecure_skip_tls_verify=cluster.insecure_skip_tls_verify,
        certificate_authority=at.credential(
            "certificate-authority", cluster.certificate_authority, cluster.certificate_authority_data
        ),
        client_certificate=who.credential(
            "client-certificate", user.client_certificate, user.client_certificate_data
        ),
        client_key=who.credential("client-key", user.client_key, user.client_key_data),
        token=_token(who, user),
        exec_plugin=_exec_plugin(who, user, environment),
    )
    if config.insecure_skip_tls_verify and config.certificate_authority:
        raise KubeConfigError(
            f"{at.name}: insecure-skip-tls-verify and certificate-authority exclude each other"
        )
    if (config.client_certificate is None) != (config.client_key is None):
        missing = "client-key" if config.client_key is None else "client-certificate"
        raise KubeConfigError(f"{who.name}: {missing} is missing")
    return config


def _token(who: _Place, user: User) -> CredentialSource | None:
    if user.token_file:
        return who.credential("tokenFile", user.token_file, "")
    if user.token:
        return CredentialSource(field=f"{who.name}, token", text=user.token)
    if user.auth_provider is None:
        return None
    field = f"{who.name}, auth-provider oidc, id-token"
    token = (user.auth_provider.config or {}).get("id-token", "")
    if not token:
        raise KubeConfigError(f"{field} is missing: log in with kubectl")
    return CredentialSource(field=field, text=token, expires_at=_read_expiry(token, field))


def _read_expiry(token: str, field: str) -> datetime | None:
    """Return the expiry of a JWT (RFC 7519), None without one. Raises KubeConfigError."""
    try:
        _, payload, _ = token.split(".")
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=="), type=dict[str, msgspec.Raw])
        return datetime.fromtimestamp(float(bytes(claims["exp"])), UTC) if "exp" in claims else None
    except (ValueError, OverflowError, OSError, RecursionError) as error:  # DecodeError is a ValueError
        raise KubeConfigError(f"{field} is not a JWT: {type(error).__name__}") from None


def _exec_plugin(who: _Place, user: User, environment: Mapping[str, str]) -> ExecPlugin | None:
    if user.exec is None:
        return None
    plugin = user.exec
    # A path with a separator is relative to the kubeconfig; a bare name is looked up in PATH (client-go).
    command = str(who.folder / plugin.command) if "/" in plugin.command else plugin.command
    return ExecPlugin(
        field=f"{who.name}, exec",
        api_version=plugin.api_version,
        command=command,
        args=tuple(plugin.args or ()),
        env={**environment, **{variable.name: variable.value for variable in plugin.env or ()}},
        install_hint=plugin.install_hint,
    )


def _read(path: Path, origin: str, kind: type[T]) -> T:
    """Read one file."""
    if path.is_fifo():
        raise KubeConfigError(f"{origin}: {path} is a pipe, which can be read only once: use a regular file")
    try:
        return read_yaml(path.read_bytes(), kind)
    except OSError as error:
        raise KubeConfigError(f"{origin}: cannot read {path}: {error.strerror or error}") from error
    except YamlError as error:
        raise KubeConfigError(f"{origin}: {path} is not a kubeconfig: {error}") from error


def _list_entries(paths: Sequence[Path], origin: str) -> dict[str, list[_NamedEntry]]:
    """Return the entries of checked files by section: "clusters", "users" and "contexts"."""
    files = [(path, _read(path, origin, dict[str, Any])) for path in paths]
    return {
        section: [_NamedEntry(value, path) for path, content in files for value in content.get(section) or ()]
        for section in _SECTIONS
    }


def _find(
    listed: Mapping[str, Sequence[_NamedEntry]], kind: str, name: str, where: str, entry_type: type[Entry]
) -> tuple[_Place, Entry]:
    # The first entry of a name wins, as for kubectl.
    entries = {entry.value["name"]: entry for entry in reversed(listed[f"{kind}s"])}
    if name not in entries:
        known = ", ".join(sorted(entries)) or "none"
        raise KubeConfigError(f"{where}: no {kind} {name!r} (existing: {known})")
    path = entries[name].path
    place = _Place(f"{path}, {kind} {name}", path.parent)
    try:
        return place, msgspec.convert(entries[name].value.get(kind) or {}, entry_type)
    except msgspec.ValidationError as error:
        raise KubeConfigError(f"{place.name}: {error}") from error


def _decode_base64(data: str, field: str) -> str:
    try:
        return base64.b64decode("".join(data.split()), validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise KubeConfigError(f"{field}: not base64 of a PEM text: {error}") from error
