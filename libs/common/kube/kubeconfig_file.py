"""The kubeconfig file format (clientcmd v1): the fields that this client reads."""

from typing import Any

import msgspec

from libs.common.safe_yaml import read_yaml


class Cluster(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The address of an API server."""

    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""

    def unsupported_fields(self) -> tuple[tuple[str, object], ...]:
        """Return unsupported fields with their values: ignoring them could reach another server."""
        return (("proxy-url", self.proxy_url),)


class ExecVariable(msgspec.Struct, frozen=True):
    """One environment variable for a credential plugin."""

    name: str
    value: str = ""


class Exec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A credential plugin; its fields are in camel case, unlike their surroundings."""

    api_version: str
    command: str
    args: tuple[str, ...] | None = None
    env: tuple[ExecVariable, ...] | None = None
    install_hint: str = ""
    interactive_mode: str = ""
    provide_cluster_info: bool = False


class User(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The identity of a client."""

    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    exec: Exec | None = None
    username: str = ""
    impersonate: str = msgspec.field(name="as", default="")
    impersonate_uid: str = msgspec.field(name="as-uid", default="")
    impersonate_groups: tuple[str, ...] | None = msgspec.field(name="as-groups", default=None)
    auth_provider: dict[str, Any] | None = None

    def unsupported_fields(self) -> tuple[tuple[str, object], ...]:
        """Return unsupported fields with their values: ignoring them could change the identity."""
        return (
            ("username (basic authentication has left Kubernetes)", self.username),
            ("as (impersonation)", self.impersonate),
            ("as-uid (impersonation)", self.impersonate_uid),
            ("as-groups (impersonation)", self.impersonate_groups),
            ("auth-provider (superseded by exec plugins)", self.auth_provider is not None),
        )


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster and a user, by name."""

    cluster: str = ""
    user: str = ""


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: Cluster


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: User


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: Context


class KubeconfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file; lists may be null, as `kubectl config` writes them when they are empty."""

    clusters: tuple[_NamedCluster, ...] | None = None
    users: tuple[_NamedUser, ...] | None = None
    contexts: tuple[_NamedContext, ...] | None = None
    current_context: str = msgspec.field(name="current-context", default="")


def decode_kubeconfig(text: bytes) -> KubeconfigFile:
    """Read a kubeconfig from YAML or JSON. Raises YamlError (with the path)."""
    return read_yaml(text, KubeconfigFile)
