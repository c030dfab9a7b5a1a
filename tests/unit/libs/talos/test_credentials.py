"""The credential store on real files and certificates, with a clock that the test turns."""

import base64
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from libs.talos.credentials import CredentialStore
from libs.talos.talosconfig import CredentialsError
from libs.testbed.pki import TalosPki

NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)


@pytest.fixture
def pki(tmp_path: Path) -> TalosPki:
    return TalosPki(tmp_path / "pki", ["127.0.0.1"])


def a_talosconfig(pki: TalosPki, *, issued_at: datetime = NOW, lifetime: timedelta = 6 * HOUR) -> str:
    return pki.talosconfig(["10.0.0.1"], issued_at=issued_at, lifetime=lifetime)


@pytest.fixture
def path(pki: TalosPki, tmp_path: Path) -> Path:
    """A file as the cluster writes it."""
    path = tmp_path / "config"
    path.write_text(a_talosconfig(pki))
    return path


def a_broken(text: str, **fields: str) -> str:
    """The config with fields of its context replaced by other text."""
    config = msgspec.yaml.decode(text)
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in fields.items()}
    config["contexts"]["default"].update(encoded)
    return msgspec.yaml.encode(config).decode()


def test_a_file_as_the_cluster_writes_it_gives_credentials(path: Path):
    credentials = CredentialStore([path]).current(NOW)
    assert credentials.not_after == NOW + 6 * HOUR
    assert credentials.roles == ("os:reader",)
    assert [str(endpoint) for endpoint in credentials.endpoints] == ["10.0.0.1:50000"]
    assert credentials.source == path
    assert credentials.problem(NOW) == ""


def test_the_first_existing_file_is_taken(pki: TalosPki, tmp_path: Path):
    second = tmp_path / "second"
    second.write_text(a_talosconfig(pki))
    store = CredentialStore([tmp_path / "missing", second])
    assert store.current(NOW).source == second


def test_without_any_file_the_error_names_all_that_were_tried(tmp_path: Path):
    with pytest.raises(CredentialsError) as error:
        CredentialStore([tmp_path / "a", tmp_path / "b"]).current(NOW)
    assert str(tmp_path / "a") in str(error.value)
    assert str(tmp_path / "b") in str(error.value)


def test_a_file_that_appears_later_is_found(pki: TalosPki, tmp_path: Path):
    path = tmp_path / "config"
    store = CredentialStore([path])
    with pytest.raises(CredentialsError):
        store.current(NOW)
    path.write_text(a_talosconfig(pki))
    assert store.current(NOW).source == path


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(CredentialsError, match=rf"^{tmp_path}: Is a directory"):
        CredentialStore([tmp_path]).current(NOW)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ca": "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----"}, "field ca: the certificate"),
        ({"ca": "-----BEGIN \xe4-----"}, "field ca: the certificate"),
        (
            {"crt": "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----"},
            "field crt: the certificate",
        ),
        ({"crt": "-----BEGIN NOTHING-----"}, "field crt: the certificate"),
        (
            {"key": "-----BEGIN ED25519 PRIVATE KEY-----\nMA==\n-----END ED25519 PRIVATE KEY-----"},
            "field key: ",
        ),
    ],
)
def test_pem_that_cannot_be_read_is_named(
    pki: TalosPki, tmp_path: Path, fields: dict[str, str], message: str
):
    path = tmp_path / "config"
    path.write_text(a_broken(a_talosconfig(pki), **fields))
    with pytest.raises(CredentialsError) as error:
        CredentialStore([path]).current(NOW)
    assert str(error.value).startswith(f"{path}: context 'default': {message}")


def test_a_key_of_another_certificate_is_named(pki: TalosPki, tmp_path: Path):
    path = tmp_path / "config"
    other = pki.client(["os:reader"], lifetime=HOUR)
    path.write_text(a_broken(a_talosconfig(pki), key=other.key.decode()))
    with pytest.raises(
        CredentialsError, match="field key: the key does not match the certificate in field crt"
    ):
        CredentialStore([path]).current(NOW)


def test_a_replaced_file_is_noticed_at_the_next_check_and_not_before(path: Path, pki: TalosPki):
    store = CredentialStore([path], recheck_seconds=5)
    first = store.current(NOW)
    path.write_text(a_talosconfig(pki, lifetime=7 * HOUR))
    assert store.current(NOW + timedelta(seconds=4)) is first
    second = store.current(NOW + timedelta(seconds=5))
    assert second.not_after == NOW + 7 * HOUR
    assert second.digest != first.digest
    assert second.tls is not first.tls


def test_a_secret_is_updated_by_swapping_a_symlink(pki: TalosPki, tmp_path: Path):
    for name, hours in (("..1", 6), ("..2", 7)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config").write_text(a_talosconfig(pki, lifetime=hours * HOUR))
        os.utime(tmp_path / name / "config", (0, 0))  # the same time: the path tells them apart
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "config").symlink_to("..data/config")
    store = CredentialStore([tmp_path / "config"], recheck_seconds=0)
    assert store.current(NOW).not_after == NOW + 6 * HOUR
    (tmp_path / "..tmp").symlink_to("..2")
    (tmp_path / "..tmp").replace(tmp_path / "..data")
    assert store.current(NOW).not_after == NOW + 7 * HOUR


def test_a_file_touched_but_not_changed_gives_the_same_credentials(path: Path):
    store = CredentialStore([path], recheck_seconds=0)
    first = store.current(NOW)
    os.utime(path, (1, 1))
    assert store.current(NOW) is first


def test_new_content_behind_an_unchanged_stamp_is_found_when_talos_refuses(pki: TalosPki, tmp_path: Path):
    path = tmp_path / "config"
    texts = (a_talosconfig(pki), a_talosconfig(pki, lifetime=6 * HOUR + timedelta(minutes=1)))
    size = max(map(len, texts))  # random serial numbers and signatures differ by a few bytes
    old, new = (text.ljust(size, "\n") for text in texts)
    path.write_text(old)
    before = path.stat()
    store = CredentialStore([path], recheck_seconds=0)
    store.current(NOW)
    path.write_text(new)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert store.current(NOW).not_after == NOW + 6 * HOUR
    assert store.reload(NOW).not_after == NOW + 6 * HOUR + timedelta(minutes=1)


def test_a_file_that_breaks_leaves_working_credentials_and_a_problem(path: Path, pki: TalosPki):
    store = CredentialStore([path], recheck_seconds=0)
    first = store.current(NOW)
    path.write_text("")
    assert store.current(NOW) is first
    assert store.problem == f"{path}: the file is empty"
    path.unlink()
    assert store.current(NOW) is first
    assert "none of these files exists" in store.problem
    path.write_text(a_talosconfig(pki, lifetime=7 * HOUR))
    assert store.current(NOW).not_after == NOW + 7 * HOUR
    assert store.problem == ""


def test_credentials_whose_file_is_broken_end_when_they_expire(path: Path):
    store = CredentialStore([path], recheck_seconds=0)
    store.current(NOW)
    path.write_text("")
    with pytest.raises(CredentialsError, match="the file is empty"):
        store.current(NOW + 7 * HOUR)


def test_a_clock_set_back_does_not_stop_the_checks(path: Path, pki: TalosPki):
    store = CredentialStore([path], recheck_seconds=5)
    store.current(NOW)
    path.write_text(a_talosconfig(pki, lifetime=7 * HOUR))
    assert store.current(NOW - HOUR).not_after == NOW + 7 * HOUR


@pytest.mark.parametrize(
    ("now", "written", "message"),
    [
        (0, 0, ""),
        (6, 0, ""),
        (-1, -1, "is valid only in 60 min (from 2026-01-01T00:00:00Z): is the clock of this host behind?"),
        (
            9,
            8,
            "3 h ago (2026-01-01T06:00:00Z), before the file was written: is the clock of this host ahead?",
        ),
        (9, 0, "expired 3 h ago (2026-01-01T06:00:00Z) and was not renewed: see the status of the talos.dev"),
        (100, 0, "expired 3 d ago"),
        (6.01, 0, "expired 36 s ago"),
    ],
)
def test_the_clock_is_suspected_where_nobody_else_can_be_to_blame(
    path: Path, now: float, written: float, message: str
):
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    times = {"not_before": begin, "not_after": begin + 6 * HOUR, "written_at": begin + written * HOUR}
    credentials = msgspec.structs.replace(CredentialStore([path]).current(NOW), **times)
    problem = credentials.problem(begin + now * HOUR)
    assert message in problem
    assert bool(problem) == bool(message)
