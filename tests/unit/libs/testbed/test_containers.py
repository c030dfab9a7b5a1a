"""make compose-local: errors on machines where it cannot run, its cache, and errors of commands."""

from pathlib import Path

import pytest

from libs.testbed.cache import CommandFailed, get_or_make, run_command
from libs.testbed.containers.packages import MissingPrerequisite, check_machine


def machine_with(folder: Path, *tools: str) -> str:
    for tool in tools:
        (folder / tool).touch(mode=0o755)
    return str(folder)


def test_the_error_for_a_user_without_root_names_both_alternatives(tmp_path: Path):
    path = machine_with(tmp_path, "apt-get", "dpkg-deb", "tar", "umount")
    check_machine(0, path)
    with pytest.raises(MissingPrerequisite, match=r"needs root: sudo make compose-local\n.*make compose-up"):
        check_machine(1000, path)


def test_the_error_on_a_machine_that_is_not_debian_lists_what_it_lacks(tmp_path: Path):
    with pytest.raises(MissingPrerequisite, match="needs a Debian machine: this one lacks apt-get, dpkg-deb"):
        check_machine(0, machine_with(tmp_path, "tar", "umount"))


def test_the_error_of_a_command_contains_its_output():
    with pytest.raises(CommandFailed, match=r"ended with status 3:\nout of luck"):
        run_command(["sh", "-c", "echo out of luck >&2; exit 3"])


def test_an_incomplete_file_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def break_off(path: Path) -> None:
        path.mkdir()
        (path / "half").touch()
        raise CommandFailed("the network is gone")

    def make(path: Path) -> None:
        path.mkdir()
        (path / "whole").touch()

    with pytest.raises(CommandFailed):
        get_or_make("wheels", "wheels", break_off)
    assert [each.name for each in get_or_make("wheels", "wheels", make).iterdir()] == ["whole"]
