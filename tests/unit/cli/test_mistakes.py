"""What `talos-ccm` says to who has mistyped a name, and where there is no room for what it has to say."""

import errno
import os

import pytest
from click.testing import CliRunner, Result

from cli.__main__ import main
from cli.config.command import check
from cli.name_suggestion import suggest_name

NAMES = ["web-1", "worker-pool-a-7d9f", "cp-1"]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("web1", "web-1"),
        ("WEB-1", "web-1"),
        ("node/cp-1", "cp-1"),
        ("worker-pool-a-7d9", "worker-pool-a-7d9f"),
    ],
)
def test_a_name_that_is_mistyped_is_told_as_it_is(said: str, meant: str):
    assert suggest_name(said, NAMES) == f"; did you mean {meant}?"


def test_nothing_is_guessed_of_a_name_that_is_like_no_other():
    assert suggest_name("db-master", NAMES) == suggest_name("", NAMES) == suggest_name("web-1", []) == "."


def fails_with(number: int, monkeypatch: pytest.MonkeyPatch) -> Result:
    def full(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(check, "callback", full)
    return CliRunner().invoke(main, ["config", "check", "-"])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_is_told_in_words(number: int, monkeypatch: pytest.MonkeyPatch):
    done = fails_with(number, monkeypatch)
    assert done.exit_code == 2
    assert done.output == f"Error: cannot write the output: {os.strerror(number)}\n"


def test_any_other_failure_of_the_system_is_not_passed_off_as_that(monkeypatch: pytest.MonkeyPatch):
    done = fails_with(errno.ENOENT, monkeypatch)
    assert isinstance(done.exception, FileNotFoundError)
