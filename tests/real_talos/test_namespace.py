"""Without a network namespace the machines do not start, and the error names what is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from libs.testbed.talos_front import NamespaceError, TalosFront


@pytest.fixture
def no_namespaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user who may not create namespaces: unshare fails."""
    unshare = tmp_path / "bin" / "unshare"
    unshare.parent.mkdir()
    unshare.write_text('#!/bin/sh\necho "unshare $1: not permitted" >&2\nexit 1\n')
    unshare.chmod(0o755)
    monkeypatch.setenv("PATH", f"{unshare.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("no_namespaces")
async def test_a_user_without_namespaces_gets_the_reasons_of_both_attempts(tmp_path: Path):
    with pytest.raises(NamespaceError, match=r"user namespaces \(unshare --net: .*; unshare --user: .*\)"):
        async with TalosFront.start(tmp_path):
            pass
