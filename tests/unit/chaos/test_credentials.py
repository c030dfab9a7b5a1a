"""A credential is found in a log, in every form, and nothing else is."""

from datetime import timedelta
from pathlib import Path

import pytest

from libs.common.bus.nats.nats_access import generate_seed, public_key_of
from libs.testbed.talos_pki import TalosPki
from tests.chaos.credentials import CredentialRecord, find_leaks, list_secret_texts, read_files


@pytest.fixture
def pki(tmp_path: Path) -> TalosPki:
    return TalosPki(tmp_path, ["localhost"])


def test_the_key_of_a_talosconfig_is_found_as_written_and_decoded(pki: TalosPki):
    text = pki.talosconfig(["127.0.0.1:1"]).encode()
    found = list(list_secret_texts(text))
    assert len(found) >= 2
    for secret in found:
        assert find_leaks(
            [("talosconfig", text)], {"metadata.log": b"key=" + secret, "csr.log": b"fine"}
        ) == [("metadata.log", "talosconfig")]


def test_a_certificate_is_no_secret(pki: TalosPki):
    pair = pki.client(["os:reader"], lifetime=timedelta(hours=1))
    assert not find_leaks([("key", pair.key)], {"log": pair.certificate + pki.authority.pem})
    assert find_leaks([("key", pair.key)], {"log": b"x" + pair.key}) == [("log", "key")]
    assert not list(list_secret_texts(pair.certificate))


def test_a_seed_of_a_nats_key_is_found_and_its_public_key_is_no_secret():
    seed = generate_seed()
    assert find_leaks([("seed.nk", seed)], {"csr.log": b"seed=" + seed.strip()}) == [("csr.log", "seed.nk")]
    assert not find_leaks([("seed.nk", seed)], {"csr.log": public_key_of(seed).encode()})


def test_a_token_is_found_by_its_signature_and_its_claims_are_no_secret():
    claims, signature = b"eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJsYWJlbGVyIn0.", b"c2lnbmF0dXJl-b2YgdGhlX3Rva2Vu"
    token = [("token", claims + signature)]
    assert find_leaks(token, {"log": b"Bearer " + claims + signature}) == [("log", "token")]
    assert not find_leaks(token, {"log": claims})


def test_a_credential_that_was_replaced_is_found_once_as_is_the_present_one(tmp_path: Path):
    file, record = tmp_path / "seed.nk", CredentialRecord()
    former, present = generate_seed(), generate_seed()
    for seed in (former, present):
        file.write_bytes(seed)
        record.add([file])
        record.add([file])
    texts = {"first.log": former, "second.log": present, "both.log": former + present}
    assert find_leaks(record, texts) == [(name, str(file)) for name in sorted(texts)]


def test_a_file_that_disappears_before_it_is_read_hides_no_other(tmp_path: Path):
    kept = tmp_path / "2.blk"
    kept.write_bytes(b"message")
    assert read_files([tmp_path / "1.blk", kept]) == {str(kept): b"message"}
