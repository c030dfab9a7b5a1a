"""Loads one context of one or more kubeconfig files, merged as kubectl does: the first entry wins."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from libs.common.kube.kube_config import CredentialSource, ExecPlugin, KubeConfig, KubeConfigError
from libs.common.kube.kubeconfig_file import Cluster, Context, KubeconfigFile, User, decode_kubeconfig
from libs.common.safe_yaml import YamlError

Entry = TypeVar("Entry", Cluster, Context, User)


def load_context(
    paths: Sequence[Path], context_name: str, origin: str, environment: Mapping[str, str]
) -> KubeConfig:
    """Load the named context, or the current one if the name is "". Raises KubeConfigError.

    `origin` names the flag or variable with the paths; `environment` is for an exec plugin.
    """
    files = [(path, _read(path, origin)) for path in paths]
    where = ":".join(map(str, paths))
    name = context_name or next((file.current_context for _, file in files if file.current_context), "")
    if not name:
        raise KubeConfigError(f"{where}: current-context is not set")
    context = _find(
        name, [(p, e.name, e.context) for p, f in files for e in f.contexts or ()], "context", where
    )[1]
    source = f"{where}, context {name}"
    cluster_name, user_name = context.cluster, context.user
    if not cluster_name:
        raise KubeConfigError(f"{source}: names no cluster")
    clusters = [(p, e.name, e.cluster) for p, f in files for e in f.clusters or ()]
    cluster_path, cluster = _find(cluster_name, clusters, "cluster", source)
    user_path, user = where, User()  # anonymous
    if user_name:
        users = [(p, e.name, e.user) for p, f in files for e in f.users or ()]
        user_path, user = _find(user_name, users, "user", source)
    at = _Place(f"{cluster_path}, cluster {cluster_name}", Path(cluster_path).parent)
    who = _Place(f"{user_path}, user {user_name}", Path(user_path).parent)
    config = _assemble(source, at, cluster, who, user)
    return msgspec.structs.replace(config, exec_plugin=_exec_plugin(who, user, environment))


class _Place(msgspec.Struct, frozen=True):
    """The file of an entry: for messages and relative paths."""

    name: str
    folder: Path

    def material(
        self, field: str, file: str, data: str | None = None, text: str = ""
    ) -> CredentialSource | None:
        """Return the source as Kubernetes does: `<field>-data` before the file; None without either."""
        label = f"{self.name}, {field}"
        if data:
            return CredentialSource(field=f"{label}-data", text=_base64(data, f"{label}-data"))
        if file:
            return CredentialSource(field=label, file=self.folder / file)
        return CredentialSource(field=label, text=text) if text else None


def _assemble(source: str, at: _Place, cluster: Cluster, who: _Place, user: User) -> KubeConfig:
    for field, value in (*cluster.unsupported_fields(), *user.unsupported_fields()):
        if value:
            raise KubeConfigError(f"{source}: {field} is not supported")
    config = KubeConfig(
        source=source,
        server=parse_server_url(cluster.server, f"{at.name}, server"),
        tls_server_name=cluster.tls_server_name,
        insecure_skip_tls_verify=cluster.insecure_skip_tls_verify,
        certificate_authority=at.material(
            "certificate-authority", cluster.certificate_authority, cluster.certificate_authority_data
        ),
        client_certificate=who.material(
            "client-certificate", user.client_certificate, user.client_certificate_data
        ),
        client_key=who.material("client-key", user.client_key, user.client_key_data),
        token=who.material("tokenFile", user.token_file) or who.material("token", "", text=user.token),
    )
    if config.insecure_skip_tls_verify and config.certificate_authority:
        raise KubeConfigError(
            f"{at.name}: insecure-skip-tls-verify and certificate-authority exclude each other"
        )
    if (config.client_certificate is None) != (config.client_key is None):
        missing = "client-key" if config.client_key is None else "client-certificate"
        raise KubeConfigError(f"{who.name}: {missing} is missing")
    return config


def _exec_plugin(who: _Place, user: User, environment: Mapping[str, str]) -> ExecPlugin | None:
    if user.exec is None:
        return None
    plugin = user.exec
    if plugin.interactive_mode == "Always" or plugin.provide_cluster_info:
        raise KubeConfigError(
            f"{who.name}, exec: interactiveMode Always and provideClusterInfo are not supported"
        )
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


def _read(path: Path, origin: str) -> KubeconfigFile:
    try:
        return decode_kubeconfig(path.read_bytes())
    except OSError as error:
        raise KubeConfigError(f"{origin}: cannot read {path}: {error.strerror or error}") from error
    except YamlError as error:
        raise KubeConfigError(f"{origin}: {path} is not a kubeconfig: {error}") from error


def _find(name: str, entries: Sequence[tuple[Path, str, Entry]], kind: str, where: str) -> tuple[str, Entry]:
    for path, entry_name, entry in entries:  # the first file wins, as with kubectl
        if entry_name == name:
            return str(path), entry
    known = ", ".join(sorted({entry_name for _, entry_name, _ in entries})) or "none"
    raise KubeConfigError(f"{where}: no {kind} {name!r} (existing: {known})")


def parse_server_url(text: str, field: str) -> str:
    """Return the URL of an API server, without a trailing slash. Raises KubeConfigError."""
    if "@" in text:  # every message about this server would show it
        raise KubeConfigError(f"{field}: user name and password in the URL are not supported")
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise KubeConfigError(f"{field}: {text!r} is not a URL such as https://10.0.0.1:6443")
    return text.rstrip("/")


def _base64(data: str, field: str) -> str:
    try:
        return base64.b64decode("".join(data.split()), validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise KubeConfigError(f"{field}: not base64 of a PEM text: {error}") from error
