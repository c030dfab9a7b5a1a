"""Which talosconfig is taken, what of it is read, and why one is refused."""

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.cluster.access import AccessError, open_talos_client
from cli.cluster.query import ClusterQuery
from cli.inside import talos_probe
from libs.talos.talosconfig import (
    CredentialsError,
    Endpoint,
    list_candidate_files,
    parse_talosconfig,
)
from services.metadata.machines.talos_client import open_talos
from services.metadata.settings import MetadataSettings
from tests.service_flow import make_dependencies

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PEM = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n").decode()


def a_talosconfig(**fields: Any) -> bytes:
    context = {"endpoints": ["10.0.0.1"], "ca": PEM, "crt": PEM, "key": PEM, **fields}
    context = {name: value for name, value in context.items() if value is not None}
    return msgspec.yaml.encode({"context": "default", "contexts": {"default": context}})


def test_a_config_is_read_with_its_current_context():
    config = parse_talosconfig(a_talosconfig(cluster="prod", nodes=["10.0.0.9"]), source="f")
    assert config.context == "default"
    assert config.cluster == "prod"
    assert config.endpoints == (Endpoint("10.0.0.1", 50000),)
    assert config.ca.startswith(b"-----BEGIN CERTIFICATE-----")


def test_base64_may_be_broken_into_lines():
    folded = "\n".join(PEM[i : i + 20] for i in range(0, len(PEM), 20))
    assert parse_talosconfig(a_talosconfig(ca=folded), source="f").ca.startswith(b"-----BEGIN")


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("10.0.0.1", "10.0.0.1:50000"),
        ("10.0.0.1:51000", "10.0.0.1:51000"),
        ("talos.default", "talos.default:50000"),
        ("talos.default.svc.", "talos.default.svc.:50000"),
        ("fd00::1", "[fd00::1]:50000"),
        ("[fd00::1]", "[fd00::1]:50000"),
        ("[fd00::1]:51000", "[fd00::1]:51000"),
        ("https://omni.example", "omni.example:443"),
        ("https://omni.example:8443/", "omni.example:8443"),
        ("tcp://10.0.0.1", "10.0.0.1:50000"),
        (" 10.0.0.1 ", "10.0.0.1:50000"),
    ],
)
def test_an_endpoint_may_be_written_in_every_way_that_talosctl_takes(text: str, endpoint: str):
    config = parse_talosconfig(a_talosconfig(), source="f", endpoints=text)
    assert [str(one) for one in config.endpoints] == [endpoint]


def test_talos_endpoints_overrides_the_file_even_if_that_has_none():
    config = parse_talosconfig(a_talosconfig(endpoints=None), source="f", endpoints="10.0.0.2, 10.0.0.3:1,")
    assert [str(one) for one in config.endpoints] == ["10.0.0.2:50000", "10.0.0.3:1"]


def test_the_deprecated_target_is_one_more_endpoint():
    config = parse_talosconfig(a_talosconfig(target="10.0.0.7"), source="f")
    assert [one.host for one in config.endpoints] == ["10.0.0.1", "10.0.0.7"]


def test_an_endpoint_named_twice_is_one():
    config = parse_talosconfig(a_talosconfig(endpoints=["10.0.0.1", "10.0.0.1:50000"]), source="f")
    assert len(config.endpoints) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "/etc/t: the file is empty"),
        (b" \n", "/etc/t: the file is empty"),
        (b"{", "/etc/t: not a talosconfig: "),
        (b"\xff\xfe\x00", "/etc/t: not a talosconfig: "),
        (b"- 1", "/etc/t: not a talosconfig: Expected `object`, got `array`"),
        (b"contexts: {a: {ca: 3}}", "/etc/t: not a talosconfig: Expected `str | null`, got `int`"),
        (b"contexts: {a: {}}", "/etc/t: field context: no current context (existing: a)"),
        (b"context: b\ncontexts: {a: {}, c: null}", "/etc/t: no context 'b' (existing: a, c)"),
        (b"context: c\ncontexts: {c: null}", "/etc/t: no context 'c'"),
        (a_talosconfig(endpoints=[]), "context 'default': field endpoints: no Talos endpoint"),
        (a_talosconfig(endpoints=["a b"]), "field endpoints: 'a b' is neither an address nor a host name"),
        (a_talosconfig(endpoints=["a:port"]), "field endpoints: 'a:port' has no usable port"),
        (a_talosconfig(endpoints=["a:0"]), "field endpoints: 'a:0' has no usable port"),
        (a_talosconfig(endpoints=["a:65536"]), "field endpoints: 'a:65536' has no usable port"),
        (a_talosconfig(endpoints=[""]), "field endpoints: '' is neither an address nor a host name"),
        (a_talosconfig(ca=""), "context 'default': field ca: missing"),
        (a_talosconfig(crt=None), "context 'default': field crt: missing"),
        (a_talosconfig(key="!"), "context 'default': field key: is not base64"),
        (a_talosconfig(auth={"siderov1": {"identity": "a"}}, key=None), "field key: missing"),
        (
            a_talosconfig(auth={"basic": {"username": "u", "password": "secret"}}, crt=None, key=None),
            "auth.basic alone is not supported",
        ),
        (a_talosconfig(key="AAAA"), "context 'default': field key: the decoded base64 holds no PEM block"),
    ],
)
def test_an_error_names_the_file_the_context_and_the_field(text: bytes, message: str):
    with pytest.raises(CredentialsError) as error:
        parse_talosconfig(text, source="/etc/t")
    assert message in str(error.value)
    assert str(error.value).startswith("/etc/t: ")
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "auth",
    [
        {"basic": {"username": "u", "password": "p"}},
        {"siderov1": {"identity": "a@example.com"}},
        {"siderov1": {}},
        {"siderov1": None},
        {"siderov1": "a text", "other": 3},
        {},
        "a text",
    ],
)
def test_a_client_certificate_beside_auth_is_used(auth: object):
    config = parse_talosconfig(a_talosconfig(auth=auth), source="f")
    assert config == parse_talosconfig(a_talosconfig(), source="f")


@pytest.mark.parametrize(
    ("identity", "shown"),
    [("a@example.com", "'a@example.com'"), ("\n" * 500, r"'\n\n")],
    ids=["short", "hostile"],
)
@pytest.mark.parametrize("ca", [PEM, None], ids=["with a CA", "without"])
def test_siderov1_alone_is_refused_with_both_credentials_named(ca: str | None, identity: str, shown: str):
    text = a_talosconfig(auth={"siderov1": {"identity": identity}}, ca=ca, crt=None, key=None)
    with pytest.raises(CredentialsError) as error:
        parse_talosconfig(text, source="/etc/t")
    message = str(error.value)
    assert message.startswith(f"/etc/t: context 'default': auth.siderov1 ({shown}")
    assert "alone is not supported, nor is a service account key (OMNI_SERVICE_ACCOUNT_KEY)" in message
    assert "use a talosconfig with a client certificate (fields ca, crt, key)" in message
    assert "ServiceAccount of talos.dev" in message
    assert "\n" not in message
    assert len(message) < 600


def test_a_bad_endpoint_from_the_environment_is_blamed_on_the_environment():
    with pytest.raises(CredentialsError, match=r"^TALOS_ENDPOINTS: 'a b' is neither"):
        parse_talosconfig(a_talosconfig(), source="f", endpoints="a b")


@given(st.text(min_size=1, max_size=60).filter(lambda text: text.replace(",", "").strip()))
def test_any_endpoints_are_endpoints_or_a_credentials_error(text: str):
    try:
        config = parse_talosconfig(a_talosconfig(), source="f", endpoints=text)
    except CredentialsError:
        return
    for endpoint in config.endpoints:
        assert 0 < endpoint.port < 65536
        assert endpoint.host
        assert not set(endpoint.host) & set(" /[]@")


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, ["/home/me/.talos/config"]),
        ({"TALOSCONFIG": "/etc/t"}, ["/etc/t", "/home/me/.talos/config"]),
        ({"TALOSCONFIG": ""}, ["/home/me/.talos/config"]),
        ({"TALOS_HOME": "/opt/talos"}, ["/opt/talos/config"]),
        ({"TALOS_HOME": "relative"}, ["/home/me/.talos/config"]),
        ({"TALOSCONFIG": "t", "TALOS_HOME": "/opt/talos"}, ["t", "/opt/talos/config"]),
    ],
)
def test_the_file_is_looked_for_where_talosctl_looks(environment: dict[str, str], first: list[str]):
    candidates = list_candidate_files(environment, Path("/home/me"))
    assert [str(path) for path in candidates] == [*first, "/var/run/secrets/talos.dev/config"]


def test_no_key_shows_where_a_config_is_printed():
    key = base64.b64encode(b"-----BEGIN ED25519 PRIVATE KEY-----\nhunter2\n").decode()
    config = parse_talosconfig(a_talosconfig(key=key), source="f")
    assert b"hunter2" in config.key
    assert "hunter2" not in repr(config)
    assert "default" in repr(config)


REFUSAL = (
    "context 'omni': auth.siderov1 ('a@example.com') alone is not supported, nor is a service account key"
)


@pytest.fixture
def omni(tmp_path: Path) -> Path:
    context = {"endpoints": ["https://omni.example.com"], "auth": {"siderov1": {"identity": "a@example.com"}}}
    file = tmp_path / "omni"
    file.write_bytes(msgspec.yaml.encode({"context": "omni", "contexts": {"omni": context}}))
    return file


async def test_metadata_is_not_ready(omni: Path):
    machines = open_talos(make_dependencies(None), MetadataSettings(talosconfig=omni))  # type: ignore[arg-type]  # no bus
    assert REFUSAL in machines.problem()
    await machines.close()


@pytest.fixture(params=[{}, {"ca": None, "crt": None, "key": None}], ids=["alone", "beside-null"])
def any_omni(request: pytest.FixtureRequest, omni: Path) -> Path:
    """Null is an empty field."""
    file = msgspec.yaml.decode(omni.read_bytes())
    file["contexts"]["omni"] |= request.param
    omni.write_bytes(msgspec.yaml.encode(file))
    return omni


async def test_commands_that_ask_machines_end_with_it(any_omni: Path):
    with pytest.raises(AccessError) as error:
        async with open_talos_client(ClusterQuery(talosconfig=any_omni)):
            pass
    assert REFUSAL in str(error.value)


async def test_doctor_reports_it(omni: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TALOSCONFIG", str(omni))
    seen = await talos_probe.probe_credential((), "")
    assert REFUSAL in seen.problem
