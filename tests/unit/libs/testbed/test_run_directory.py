"""What a killed run leaves behind is removed by the next run, and nothing of a running one."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from libs.testbed.run_directory import open_run_directory

LONG_AGO = 1_000_000_000


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def abandon(parent: Path, name: str) -> Path:
    """The directory of a run that was killed."""
    directory = parent / name
    (directory / "pki").mkdir(parents=True)
    for file in ("pki/ca.key", "admin.kubeconfig", "talosconfig", "a.log"):
        (directory / file).touch()
    return directory


def names(parent: Path) -> set[str]:
    return {each.name for each in parent.iterdir()}


def test_a_run_removes_its_directory_and_those_of_killed_runs_of_its_purpose(parent: Path):
    abandon(parent, "talos-ccm-demo-killed")
    abandon(parent, "talos-ccm-bench-killed")
    with open_run_directory("demo", None) as directory:
        assert names(parent) == {directory.name, "talos-ccm-bench-killed"}
        (directory / "ca.key").touch()
    assert names(parent) == {"talos-ccm-bench-killed"}


def test_a_run_beside_another_leaves_its_directory_alone(parent: Path):
    with open_run_directory("demo", None) as first:
        (first / "ca.key").touch()
        os.utime(first, (LONG_AGO, LONG_AGO))
        with open_run_directory("demo", None) as second:
            assert names(parent) == {first.name, second.name}
        assert (first / "ca.key").exists()


def test_a_run_that_has_just_created_its_directory_keeps_it(parent: Path):
    fresh, old = parent / "talos-ccm-demo-fresh", parent / "talos-ccm-demo-old"
    for directory in (fresh, old):
        directory.mkdir()
    os.utime(old, (LONG_AGO, LONG_AGO))
    with open_run_directory("demo", None) as directory:
        assert names(parent) == {fresh.name, directory.name}


def test_links_and_files_with_such_a_name_stay(parent: Path):
    outside = abandon(parent, "somewhere-else")
    (parent / "talos-ccm-demo-link").symlink_to(outside)
    (parent / "talos-ccm-demo-file").touch()
    with open_run_directory("demo", None):
        assert names(parent) >= {"talos-ccm-demo-link", "talos-ccm-demo-file"}
    assert (outside / "pki" / "ca.key").exists()


def test_keys_go_first_and_go_even_if_the_rest_cannot(parent: Path, monkeypatch: pytest.MonkeyPatch):
    left = abandon(parent, "talos-ccm-demo-killed")

    def refuse(path: Path) -> None:
        raise OSError("the file system refuses")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(OSError, match="refuses"), open_run_directory("demo", None):
        assert {each.name for each in left.rglob("*")} == {"pki", "a.log"}


def test_a_kept_directory_stays_and_is_no_temporary_one(parent: Path):
    with open_run_directory("demo", parent / "kept") as directory:
        (directory / "a.log").touch()
    assert names(parent) == {"kept"}


def test_a_directory_that_another_process_has_locked_stays(parent: Path):
    taken = abandon(parent, "talos-ccm-demo-taken")
    descriptor = os.open(taken, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with open_run_directory("demo", None):
            assert (taken / "talosconfig").exists()
    finally:
        os.close(descriptor)
