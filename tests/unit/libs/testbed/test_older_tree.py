"""Processes from an older source tree, and their flags."""

import subprocess
from pathlib import Path

import pytest

from libs.testbed.older_tree import (
    PROCESSES,
    TREE,
    OlderTree,
    extract_commit,
    find_commit,
    find_older_tree,
    parse_flags,
    restore_versions,
    run_from_older_tree,
    run_from_present_tree,
)
from libs.testbed.service_start import ROOT
from tests.mixed.__main__ import main
from tests.mixed.versions import NAMES, version_sets

ENVIRONMENT = {TREE: "/old", PROCESSES: "csr,ipam-2"}


def test_only_the_named_processes_run_from_the_older_tree():
    assert find_older_tree("csr", ENVIRONMENT) == OlderTree(Path("/old"), frozenset({"csr", "ipam-2"}))
    assert find_older_tree("ipam", ENVIRONMENT) is None
    assert find_older_tree("csr", {}) is None


def test_the_flags_are_those_that_the_help_lists_not_those_that_it_mentions():
    text = "Usage\n\nNodes:\n  --cluster-name text\n      See --other-flag.\n  --observe-only\n"
    assert parse_flags(text) == {"--cluster-name", "--observe-only"}


def test_a_flag_that_the_older_version_does_not_know_is_dropped(tmp_path: Path):
    (tmp_path / "older.py").write_text("print('  --known text')")
    argv = ["python3", "-m", "older", "--known=1", "--new=2", "--newer"]
    assert OlderTree(tmp_path, frozenset()).build_argv(argv) == ["python3", "-m", "older", "--known=1"]


@pytest.mark.parametrize(
    ("known", "given"),
    [
        ("--talos-look-deadline", "--talos-look-deadline=1s"),
        ("--talos-query-timeout", "--talos-query-timeout=1s"),
    ],
)
def test_a_renamed_flag_gets_the_name_that_the_older_version_knows(tmp_path: Path, known: str, given: str):
    (tmp_path / "older.py").write_text(f"print('  {known} duration')")
    argv = ["python3", "-m", "older", "--talos-query-timeout=1s"]
    assert OlderTree(tmp_path, frozenset()).build_argv(argv) == ["python3", "-m", "older", given]


def test_each_service_is_once_the_only_old_one_and_once_the_only_new_one():
    old = {each.name: set(each.old) for each in version_sets()}
    assert len(old) == 2 * len(NAMES)
    for name in NAMES:
        assert old[f"{name}-old"] == {name}
        assert old[f"{name}-new"] == set(NAMES) - {name}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "OLD is missing"),
        (["no-such-revision"], "OLD=no-such-revision is no commit"),
        (["HEAD", "--sets=unknown-old"], "unknown sets: unknown-old"),
    ],
)
def test_a_run_that_cannot_start_prints_the_reason(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_an_option_is_not_a_revision():
    assert find_commit(ROOT, "--all") is None


def test_processes_are_older_one_by_one_until_the_end_of_the_block():
    with restore_versions():
        run_from_older_tree("csr", Path("/old"))
        run_from_older_tree("ipam", Path("/old"))
        assert find_older_tree("csr") == OlderTree(Path("/old"), frozenset({"csr", "ipam"}))
        run_from_present_tree("csr")
        assert find_older_tree("csr") is None
        assert find_older_tree("ipam") == OlderTree(Path("/old"), frozenset({"ipam"}))
    assert find_older_tree("ipam") is None


def test_the_files_of_a_commit_are_extracted(tmp_path: Path):
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "version").write_text("1")
    git("add", "version")
    git("commit", "-m", "one")
    (tmp_path / "version").write_text("2")
    commit = find_commit(tmp_path, "HEAD")
    assert commit is not None
    extract_commit(tmp_path, commit, tmp_path / "older")
    assert (tmp_path / "older" / "version").read_text() == "1"
