from pathlib import Path

from libs.testbed.talos_pki import TalosPki


def test_a_key_of_the_testbed_is_for_its_owner_alone(tmp_path: Path):
    pki = TalosPki(tmp_path, ["127.0.0.1"])
    pki.rotate()
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0
