"""Where the API server is and who we are: every good form is read, every bad one is named."""

import base64
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.kube.credentials import CHECK_SECONDS, Credentials, tls_context
from libs.common.kube.kube_config import CredentialSource, ExecCredential, KubeConfig, KubeConfigError
from libs.common.kube.load_kube_config import load_kube_config, with_server

SERVER = "https://10.0.0.1:6443"


NO_USER = b"""
current-context: x
contexts: [{name: x, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: 'https://a'}}]
"""


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def a_kubeconfig(
    folder: Path,
    *,
    cluster: dict[str, Any] | None = None,
    user: dict[str, Any] | None = None,
    name: str = "config",
    **top: Any,
) -> Path:
    path = folder / name
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "admin@talos",
        "clusters": [{"name": "talos", "cluster": {"server": SERVER} | (cluster or {})}],
        "users": [{"name": "admin", "user": user or {}}],
        "contexts": [{"name": "admin@talos", "context": {"cluster": "talos", "user": "admin"}}],
    } | top
    path.write_bytes(msgspec.yaml.encode(document))
    return path


def loaded(path: Path, **options: Any) -> KubeConfig:
    return load_kube_config(path, {}, **options)


def read(material: CredentialSource | None) -> str:
    assert material is not None
    return material.read()


def test_certificates_written_into_the_file_are_decoded(tmp_path: Path):
    user = {"client-certificate-data": b64("CERT"), "client-key-data": b64("KEY")}
    config = loaded(a_kubeconfig(tmp_path, cluster={"certificate-authority-data": b64("CA")}, user=user))
    assert config.server == SERVER
    materials = (config.certificate_authority, config.client_certificate, config.client_key)
    assert [read(material) for material in materials] == ["CA", "CERT", "KEY"]


def test_data_wins_over_a_file_and_a_token_file_over_a_token(tmp_path: Path):
    (tmp_path / "token").write_text("from-file\n")
    config = loaded(
        a_kubeconfig(
            tmp_path,
            cluster={"certificate-authority": "missing.crt", "certificate-authority-data": b64("CA")},
            user={"token": "written", "tokenFile": "token"},
        )
    )
    assert (read(config.certificate_authority), read(config.token)) == ("CA", "from-file")


def test_another_context_than_the_current_one_can_be_asked_for(tmp_path: Path):
    path = a_kubeconfig(
        tmp_path,
        contexts=[
            {"name": "admin@talos", "context": {"cluster": "talos", "user": "admin"}},
            {"name": "guest", "context": {"cluster": "talos"}},
        ],
        users=[{"name": "admin", "user": {"token": "t"}}],
    )
    assert loaded(path).token is not None
    assert loaded(path, context="guest").token is None


def test_several_files_are_merged_and_the_first_that_has_a_name_wins(tmp_path: Path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/t").write_text("second")
    first = a_kubeconfig(tmp_path, name="one", users=None)
    second = a_kubeconfig(
        tmp_path / "other", cluster={"server": "https://shadowed:1"}, user={"tokenFile": "t"}, name="two"
    )
    config = load_kube_config(None, {"KUBECONFIG": f"{first}:{tmp_path}/absent:{second}"})
    assert config.server == SERVER
    assert read(config.token) == "second"


def test_the_first_current_context_of_several_files_counts(tmp_path: Path):
    first = a_kubeconfig(tmp_path, name="one")
    second = a_kubeconfig(tmp_path, name="two")
    second.write_text(second.read_text().replace("current-context: admin@talos", "current-context: other"))
    assert "current-context: other" in second.read_text()
    for files in (f"{first}:{second}", f"{tmp_path}/absent:{first}:{second}"):
        config = load_kube_config(None, {"KUBECONFIG": files})
        assert config.source.endswith("context admin@talos")


def test_a_certificate_is_relative_to_the_file_of_its_user_not_of_the_cluster(tmp_path: Path):
    (tmp_path / "users").mkdir()
    for name in ("me.crt", "me.key"):
        (tmp_path / "users" / name).write_text(name)
    user = {"client-certificate": "me.crt", "client-key": "me.key"}
    first = a_kubeconfig(tmp_path, name="clusters", users=None)
    second = a_kubeconfig(tmp_path / "users", user=user, clusters=None, contexts=None)
    config = load_kube_config(None, {"KUBECONFIG": f"{first}:{second}"})
    assert read(config.client_key) == "me.key"


def test_a_proxy_of_http_is_used(tmp_path: Path):
    proxy = "http://me:hunter2@proxy.example.com:3128"
    assert loaded(a_kubeconfig(tmp_path, cluster={"proxy-url": proxy})).proxy_url == proxy


def an_id_token(**claims: Any) -> str:
    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).decode().rstrip("=")

    return ".".join((part(b"{}"), part(msgspec.json.encode(claims)), part(b"signature")))


@pytest.mark.parametrize(
    ("claims", "expiry"),
    [
        ({"exp": 1800000000}, datetime(2027, 1, 15, 8, 0, tzinfo=UTC)),
        ({"exp": 1800000000.5, "iss": "https://a?b>c~d/ü"}, datetime(2027, 1, 15, 8, 0, 0, 500000, UTC)),
        ({}, None),
    ],
)
def test_the_id_token_of_oidc_is_a_bearer_token_until_it_expires(
    tmp_path: Path, claims: dict[str, Any], expiry: datetime | None
):
    token = an_id_token(**claims)
    provider = {"name": "oidc", "config": {"id-token": token, "refresh-token": "secret"}}
    config = loaded(a_kubeconfig(tmp_path, user={"auth-provider": provider}))
    assert config.token is not None
    assert (config.token.read(), config.token.expires_at) == (token, expiry)


def test_a_flag_wins_over_the_environment_and_both_over_the_cluster(tmp_path: Path):
    by_flag = a_kubeconfig(tmp_path, name="flag", cluster={"server": "https://flag:1"})
    by_variable = a_kubeconfig(tmp_path, name="variable", cluster={"server": "https://variable:1"})
    inside = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    environment = {"KUBECONFIG": str(by_variable)} | inside
    assert load_kube_config(by_flag, environment).server == "https://flag:1"
    assert load_kube_config(None, environment).server == "https://variable:1"


@pytest.mark.parametrize(
    ("host", "server"),
    [("10.96.0.1", "https://10.96.0.1:443"), ("fd00:10::1", "https://[fd00:10::1]:443")],
)
def test_a_pod_uses_its_service_account(tmp_path: Path, host: str, server: str):
    (tmp_path / "token").write_text("pod-token\n")
    (tmp_path / "ca.crt").write_text("CA\n")
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    config = load_kube_config(None, environment, service_account=tmp_path)
    assert config.server == server
    assert read(config.token) == "pod-token"


@pytest.mark.parametrize("lacking", ["token", "ca.crt"])
def test_the_error_of_a_pod_without_its_service_account_names_the_missing_file(tmp_path: Path, lacking: str):
    for name in {"token", "ca.crt"} - {lacking}:
        (tmp_path / name).write_text("something")
    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(KubeConfigError, match=f"cannot read {tmp_path}/{lacking}"):
        load_kube_config(None, environment, service_account=tmp_path)
    (tmp_path / lacking).write_text(" \n")
    with pytest.raises(KubeConfigError, match=f"{lacking} is empty"):
        load_kube_config(None, environment, service_account=tmp_path)


def test_an_exec_plugin_gets_our_environment_and_its_own(tmp_path: Path):
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./login",
        "args": ["--quiet"],
        "env": [{"name": "PROFILE", "value": "ops"}],
    }
    config = load_kube_config(a_kubeconfig(tmp_path, user={"exec": plugin}), {"PATH": "/bin", "PROFILE": "x"})
    assert config.exec_plugin is not None
    assert Path(config.exec_plugin.command) == tmp_path / "login"
    assert config.exec_plugin.env == {"PATH": "/bin", "PROFILE": "ops"}


def test_nothing_configured_says_what_could_be():
    with pytest.raises(KubeConfigError, match=r"--kubeconfig.*KUBECONFIG.*KUBERNETES_SERVICE_HOST"):
        load_kube_config(None, {})


def test_a_file_that_is_not_there_is_named_with_where_it_came_from(tmp_path: Path):
    with pytest.raises(KubeConfigError, match=f"--kubeconfig: cannot read {tmp_path}/none: No such file"):
        loaded(tmp_path / "none")
    with pytest.raises(KubeConfigError, match="KUBECONFIG: cannot read"):
        load_kube_config(None, {"KUBECONFIG": str(tmp_path / "none")})
    with pytest.raises(KubeConfigError, match=r"KUBECONFIG: none of .*/a, .*/b exists"):
        load_kube_config(None, {"KUBECONFIG": f"{tmp_path}/a:{tmp_path}/b"})


def test_a_pipe_is_refused_because_it_can_be_read_only_once(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(KubeConfigError, match=r"KUBECONFIG: .*/pipe is a pipe, which can be read only once"):
        load_kube_config(None, {"KUBECONFIG": str(tmp_path / "pipe")})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "is not a kubeconfig"),
        (b"\xff\xfe\x00", "is not a kubeconfig"),
        (b"[1, 2", "is not a kubeconfig"),
        (b"clusters: 7", r"is not a kubeconfig: .*\$\.clusters"),
        (b"clusters: [{cluster: {server: 'https://a'}}]", r"missing required field `name`.*clusters\[0\]"),
        (NO_USER.replace(b"'https://a'", b"1"), r"config, cluster c: .* got `int`.*\$\.server"),
        (b"kind: Config", "current-context is not set"),
        (b"current-context: x\ncontexts: null", "no context 'x' .existing: none."),
        (b"current-context: x\ncontexts: [{name: y, context: {}}]", "no context 'x' .existing: y."),
        (b"current-context: x\ncontexts: [{name: x, context: {}}]", "context x: names no cluster"),
        (b"current-context: x\ncontexts: [{name: x, context: {cluster: c}}]", "no cluster 'c'"),
        (NO_USER, "context x: no user 'u'"),
    ],
)
def test_a_malformed_kubeconfig_is_named_with_the_place(tmp_path: Path, text: bytes, complaint: str):
    path = tmp_path / "config"
    path.write_bytes(text)
    with pytest.raises(KubeConfigError, match=complaint) as raised:
        loaded(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("cluster", "user", "complaint"),
    [
        ({"server": ""}, {}, "cluster talos, server: '' is not a URL"),
        ({"server": "10.0.0.1:6443"}, {}, "is not a URL such as https://"),
        ({"server": "https://[::1"}, {}, "is not a URL"),
        ({"server": "https://a:99999"}, {}, "is not a URL"),
        ({"server": "unix:///run/kube.sock"}, {}, "is not a URL"),
        ({"proxy-url": "socks5://127.0.0.1:1080"}, {}, "cluster talos, proxy-url: only an http:// proxy"),
        ({"proxy-url": "https://proxy:3128"}, {}, "cluster talos, proxy-url: only an http:// proxy"),
        ({"proxy-url": "http://"}, {}, "cluster talos, proxy-url: only an http:// proxy"),
        (
            {"certificate-authority-data": "%%%"},
            {},
            "cluster talos, certificate-authority-data: not base64",
        ),
        (
            {"certificate-authority-data": "/////w=="},
            {},
            "certificate-authority-data: not base64 of a PEM",
        ),
        ({"insecure-skip-tls-verify": True, "certificate-authority": "ca"}, {}, "exclude each other"),
        ({}, {"client-certificate": "a"}, "user admin: client-key is missing"),
        ({}, {"client-key-data": "YQ=="}, "user admin: client-certificate is missing"),
        ({}, {"username": "u", "password": "p"}, "user admin, username: .* no basic authentication"),
        ({}, {"as": "root"}, "impersonation"),
        ({}, {"as-groups": ["system:masters"]}, "impersonation"),
        ({}, {"as-user-extra": {"scopes": ["view"]}}, "impersonation"),
        ({}, {"auth-provider": {"name": "gcp"}}, "auth-provider 'gcp': .*choose a credential plugin"),
        ({}, {"auth-provider": {"name": "oidc"}}, "oidc, id-token is missing: log in with kubectl"),
        ({}, {"auth-provider": {"name": "oidc", "config": {"id-token": "a.b"}}}, "id-token is not a JWT"),
        ({}, {"auth-provider": {"name": "oidc", "config": {"id-token": "a.#.c"}}}, "id-token is not a JWT"),
        ({}, {"exec": {"apiVersion": "v1", "command": "x", "interactiveMode": "Always"}}, "interactiveMode"),
        (
            {},
            {"exec": {"apiVersion": "v1", "command": "x", "provideClusterInfo": True}},
            "provideClusterInfo",
        ),
        ({}, {"exec": {"command": "x"}}, "apiVersion"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], complaint: str
):
    with pytest.raises(KubeConfigError, match=complaint) as raised:
        loaded(a_kubeconfig(tmp_path, cluster=cluster, user=user))
    assert str(tmp_path / "config") in str(raised.value)


def test_an_emptied_authority_does_not_open_the_door_to_all_authorities_of_the_system(tmp_path: Path):
    authority = tmp_path / "ca.crt"
    authority.write_text(" \n")
    config = loaded(a_kubeconfig(tmp_path, cluster={"certificate-authority": "ca.crt"}))
    with pytest.raises(KubeConfigError, match="certificate-authority is empty"):
        tls_context(config)


def test_no_secret_shows_where_a_configuration_is_printed(tmp_path: Path):
    user = {"token": "hunter2", "client-certificate-data": b64("CERT"), "client-key-data": b64("hunter3")}
    config = loaded(a_kubeconfig(tmp_path, user=user))
    credential = ExecCredential(token="hunter2", client_key_data="hunter3")
    assert "hunter" not in repr((config, credential))
    assert "user admin, token" in repr(config)


def test_a_password_in_the_server_s_url_is_refused_and_not_repeated(tmp_path: Path):
    path = a_kubeconfig(tmp_path, cluster={"server": "https://admin:hunter2@10.0.0.1:6443"})
    with pytest.raises(
        KubeConfigError, match="cluster talos, server: user name and password in the URL are not supported"
    ) as refused:
        loaded(path)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["10.0.0.1:6443", "https://", "https://admin:hunter2@10.0.0.1:6443", "ftp://a"]
)
def test_master_is_judged_like_the_server_of_a_kubeconfig(tmp_path: Path, url: str):
    config = loaded(a_kubeconfig(tmp_path))
    with pytest.raises(KubeConfigError, match=r"^--master: ") as refused:
        with_server(config, url, "--master")
    assert "hunter2" not in str(refused.value)
    assert with_server(config, "https://10.0.0.2:6443/", "--master").server == "https://10.0.0.2:6443"


@pytest.mark.parametrize(
    ("cluster", "user", "field"),
    [
        ({"certificate-authority": "broken.pem"}, {}, "certificate-authority"),
        ({}, {"client-certificate": "broken.pem", "client-key": "broken.pem"}, "client-certificate"),
    ],
)
def test_a_file_that_holds_no_certificate_is_named(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], field: str
):
    (tmp_path / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    with pytest.raises(KubeConfigError, match=rf"{tmp_path}/config, (user|cluster) \w+, {field}"):
        tls_context(loaded(a_kubeconfig(tmp_path, cluster=cluster, user=user)))


# ---- token files


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    """With a token file that has the word `first`."""
    (tmp_path / "token").write_text("first\n")
    path = a_kubeconfig(tmp_path, cluster={"server": "http://a"}, user={"tokenFile": "token"})
    return Credentials(loaded(path))


async def test_a_token_file_is_looked_at_every_ten_seconds(tmp_path: Path, credentials: Credentials):
    await credentials.refresh(0.0)
    (tmp_path / "token").write_text("second\n")
    await credentials.refresh(CHECK_SECONDS - 0.1)
    assert credentials.headers == {"Authorization": "Bearer first"}
    await credentials.refresh(CHECK_SECONDS)
    assert credentials.headers == {"Authorization": "Bearer second"}


@pytest.mark.parametrize("broken", [None, "", "two words", "späť"])
async def test_a_token_file_that_cannot_be_used_leaves_the_old_token_and_is_told(
    tmp_path: Path, credentials: Credentials, broken: str | None
):
    token = tmp_path / "token"
    if broken is None:
        token.unlink()
    else:
        token.write_text(broken)
    await credentials.refresh(0.0)
    assert credentials.headers == {"Authorization": "Bearer first"}
    assert "tokenFile" in credentials.problem
    token.write_text("second")
    await credentials.refresh(CHECK_SECONDS)
    assert (credentials.headers, credentials.problem) == ({"Authorization": "Bearer second"}, "")
