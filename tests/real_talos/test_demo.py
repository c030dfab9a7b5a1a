"""The whole flow through Talos's own API servers, as a user runs it."""

from pathlib import Path

import pytest

from libs.testbed.namespaces import NamespaceError
from libs.testbed.talos_front import TalosFront
from tests.integration.test_demo import a_demo, tells_all


def test_nodes_become_ready_and_nothing_stays_behind(tmp_path: Path):
    with a_demo(tmp_path, "--nodes=9", "--exit-when-ready", "--real-talos", "--bus=memory") as demo:
        said = demo.ends(0)
    assert "Talos's own API server (apid)" in said
    tells_all(said, 9)


@pytest.mark.usefixtures("no_namespaces")
def test_a_user_without_namespaces_gets_the_reason(tmp_path: Path):
    with a_demo(tmp_path, "--real-talos", "--bus=memory") as demo:
        said = demo.ends(1)
    assert "allow users to create user namespaces" in " ".join(said.split())


@pytest.mark.usefixtures("no_namespaces")
async def test_a_user_without_namespaces_gets_the_reasons_of_both_attempts(tmp_path: Path):
    with pytest.raises(NamespaceError, match=r"user namespaces \(unshare --net: .*; unshare --user: .*\)"):
        async with TalosFront.start(tmp_path):
            pass
