"""Files and certificates that the bootstrap of NATS writes; test_nats_rights has what each user may do."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from libs.common.bus.nats.nats_access import generate_seed, public_key_of
from libs.common.settings.read_settings import SettingsError, read_settings
from services.bootstrap import certificates
from services.bootstrap.key_stores import DirectoryKeyStore, write_file
from services.bootstrap.resource_names import ResourceNames
from services.bootstrap.server_config import SYSTEM_USER, find_own_address, render_server_config
from services.bootstrap.server_reconciler import InvalidSecretError, ServerReconciler
from services.bootstrap.settings import BootstrapSettings
from tests.bus_actors import wait_until

NAMES = ResourceNames(namespace="kube-system", prefix="ccm")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_file_is_replaced_whole_for_its_owner_alone_and_only_if_it_differs(tmp_path: Path):
    path = tmp_path / "tls.key"
    assert write_file(path, b"one")
    first = path.stat().st_ino
    assert not write_file(path, b"one")
    assert path.stat().st_ino == first
    assert write_file(path, b"two")
    assert path.stat().st_ino != first, "a reader of the old file reads all of it"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["tls.key"]


async def test_whoever_comes_second_gets_what_the_first_has_made(tmp_path: Path):
    store = DirectoryKeyStore(tmp_path / "keys")
    made = await asyncio.gather(*(store.create_secret("one", {"seed.nk": generate_seed()}) for _ in range(5)))
    assert {tuple(each.items()) for each in made} == {tuple((await store.get_secret("one") or {}).items())}
    assert [each.name for each in (tmp_path / "keys").iterdir()] == ["one"], "nothing half made is left"


def test_a_seed_has_a_public_key_that_is_a_users():
    one, other = generate_seed(), generate_seed()
    assert one != other
    assert public_key_of(one).startswith("U")
    assert public_key_of(one + b"\n") == public_key_of(one), "an editor ends a line"
    assert public_key_of(one) != public_key_of(other)


DAMAGED = generate_seed()


@pytest.mark.parametrize(
    "text",
    [b"", b"x", b"SUAAA", DAMAGED[:-1], DAMAGED[::-1]],
    ids=["nothing", "no seed", "short", "cut", "turned"],
)
def test_what_is_no_seed_is_refused_without_being_shown(text: bytes):
    with pytest.raises(ValueError, match="not") as refused:
        public_key_of(text)
    assert len(text) < 10 or text.decode() not in str(refused.value)


def test_a_server_is_found_by_its_service_by_its_pod_and_from_beside_it():
    hosts = NAMES.list_hosts()
    assert {
        "ccm-nats",
        "ccm-nats.kube-system.svc",
        "*.ccm-nats-headless.kube-system.svc.cluster.local",
    } <= set(hosts)
    assert {"localhost", "127.0.0.1", "::1"} <= set(hosts)


def settings(*arguments: str, **environment: str) -> BootstrapSettings:
    return read_settings([BootstrapSettings], arguments, environment).get(BootstrapSettings)


def test_a_server_has_the_name_of_its_pod():
    assert settings(POD_NAME="my-ccm-nats-1").server_name == "my-ccm-nats-1"


def test_every_mistake_is_reported_at_once():
    with pytest.raises(SettingsError) as mistakes:
        settings("--replicas=2", "--listen-address=nats", "--store-bytes=1", "--tls-names=nats,büro")
    assert [line.partition(":")[0] for line in str(mistakes.value).splitlines()] == [
        "--store-bytes", "--replicas=2", "--tls-names", "--listen-address"
    ]  # fmt: skip


@pytest.mark.parametrize("years", [-11, 11])
async def test_an_authority_that_has_ended_or_is_of_the_future_is_named_and_kept_for_a_look(
    years: int, tmp_path: Path
):
    """A clock that was wrong when it was made, or ten years: nothing but another authority helps."""
    store, given = DirectoryKeyStore(tmp_path / "keys"), BootstrapSettings(out=tmp_path / "out")
    await ServerReconciler(store, given, now=lambda: NOW).update_files()
    (given.out / "tls.crt").unlink()
    now = NOW + timedelta(days=365 * years)
    keeper = ServerReconciler(store, given, now=lambda: now)
    with pytest.raises(InvalidSecretError, match=f"valid until 2035-.*clock says {now:%Y}-"):
        await keeper.update_files()
    assert not (given.out / "tls.crt").exists()
    looking = asyncio.create_task(keeper.run())
    await wait_until(lambda: any("valid until" in problem for problem in keeper.problems()))
    assert not looking.done(), "a retry finds the authority that an operator creates"
    looking.cancel()


# ---- certificates


ISSUED_AT = datetime(2026, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
HOSTS = ResourceNames(namespace="kube-system", prefix="ccm").list_hosts()


def an_authority(now: datetime = ISSUED_AT) -> certificates.KeyPair:
    return certificates.make_authority(
        ec.generate_private_key(ec.SECP256R1()), name="ccm-nats", now=now, serial=1
    )


def issued(
    authority: certificates.KeyPair, now: datetime = ISSUED_AT, *, lifetime: timedelta = YEAR, names=HOSTS
) -> certificates.KeyPair:
    key = ec.generate_private_key(ec.SECP256R1())
    return certificates.issue_certificate(authority, key, names=names, lifetime=lifetime, now=now, serial=2)


AUTHORITY = an_authority()
HELD = issued(AUTHORITY)


def why(
    held: certificates.KeyPair | None,
    now: datetime = ISSUED_AT,
    *,
    authority: certificates.KeyPair = AUTHORITY,
    names=HOSTS,
    lifetime=YEAR,
) -> str:
    return certificates.explain_renewal(held, authority, names=names, lifetime=lifetime, now=now)


@given(st.timedeltas(min_value=timedelta(0), max_value=YEAR * 2))
def test_a_certificate_is_kept_until_a_third_of_its_life_is_left(age: timedelta):
    assert (why(HELD, ISSUED_AT + age) == "") is (age <= YEAR * 2 / 3)


def test_why_there_must_be_another_one_is_said():
    other = issued(AUTHORITY)
    assert why(None) == "the server has none yet"
    assert "expires at 2027-01-01" in why(HELD, ISSUED_AT + YEAR)
    assert "names differ" in why(HELD, names=(*HOSTS, "nats"))
    assert "present authority" in why(HELD, authority=an_authority())
    assert "another certificate" in why(certificates.KeyPair(certificate=HELD.certificate, key=other.key))
    assert "longer than --certificate-lifetime" in why(HELD, lifetime=timedelta(days=30))
    assert "is not valid" in why(certificates.KeyPair(certificate=b"half of", key=HELD.key))


def test_the_order_of_names_does_not_matter():
    assert why(HELD, names=tuple(reversed(HOSTS))) == ""


def test_no_certificate_outlives_its_authority_and_near_the_end_it_is_not_renewed_at_every_look():
    late = ISSUED_AT + certificates.AUTHORITY_LIFETIME - timedelta(days=30)
    pair = issued(AUTHORITY, late)
    assert certificates.get_expiry(pair) == certificates.get_expiry(AUTHORITY)
    assert why(pair, late) == ""
    assert "expires at" in why(pair, late + timedelta(days=21))


def test_a_clock_that_is_some_minutes_behind_takes_it():
    certificate = x509.load_pem_x509_certificate(HELD.certificate)
    assert certificate.not_valid_before_utc <= ISSUED_AT - timedelta(minutes=5)


def test_the_authority_signs_servers_and_no_other_authority():
    [constraint] = [
        e.value for e in _certificate(AUTHORITY).extensions if isinstance(e.value, x509.BasicConstraints)
    ]
    assert (constraint.ca, constraint.path_length) == (True, 0)
    [of_server] = [
        e.value for e in _certificate(HELD).extensions if isinstance(e.value, x509.BasicConstraints)
    ]
    assert of_server.ca is False


def test_a_pair_of_two_halves_is_refused():
    certificates.check_key_pair(AUTHORITY)
    with pytest.raises(ValueError, match="belongs to another certificate"):
        certificates.check_key_pair(certificates.KeyPair(certificate=AUTHORITY.certificate, key=HELD.key))


def _certificate(pair: certificates.KeyPair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate)


SETTINGS = BootstrapSettings(prefix="ccm", cloud_accounts=("prod", "staging"))
KEYS = {user: f"U{user.upper()}" for user in (*SETTINGS.names.users, SYSTEM_USER)}


def render(**changes: object) -> dict[str, Any]:
    """The configuration of this server, as nats-server reads it: without the comment at its beginning."""
    settings = msgspec.structs.replace(SETTINGS, **changes)
    comment, _, text = render_server_config(settings, KEYS).partition("\n")
    assert comment.startswith("# ")
    config: dict[str, Any] = msgspec.json.decode(text)
    return config


def test_a_lone_server_has_no_routes_and_several_prove_themselves_to_one_another():
    assert "cluster" not in render()
    config = render(replicas=3)
    assert (
        "tls://ccm-nats-2.ccm-nats-headless.kube-system.svc.cluster.local:6222" in config["cluster"]["routes"]
    )
    assert config["cluster"]["tls"]["verify"] is True
    assert "verify" not in config["tls"]


def test_an_ipv6_address_is_written_in_brackets():
    assert render(listen_address="::")["http"] == "[::]:8222"
    assert find_own_address(BootstrapSettings(listen_address="::")) == "127.0.0.1:4222"
    assert find_own_address(BootstrapSettings(listen_address="fd00::1")) == "[fd00::1]:4222"


def test_a_probe_port_of_0_is_none():
    assert "http" not in render(monitor_port=0)
