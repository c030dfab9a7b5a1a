"""Without a network namespace the machines do not start, and the error names what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.testbed.namespaces import NamespaceError
from libs.testbed.talos_front import TalosFront


@pytest.mark.usefixtures("no_namespaces")
async def test_a_user_without_namespaces_gets_the_reasons_of_both_attempts(tmp_path: Path):
    with pytest.raises(NamespaceError, match=r"user namespaces \(unshare --net: .*; unshare --user: .*\)"):
        async with TalosFront.start(tmp_path):
            pass
