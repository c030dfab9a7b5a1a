"""The entries of a kubeconfig (clientcmd v1): the fields that this client reads."""

from collections.abc import Iterator
from typing import Any

import msgspec


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
