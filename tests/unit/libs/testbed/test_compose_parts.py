"""The testbed's programs in deploy/compose: credentials of each container, and readiness of nodes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.common.contract.services import SERVICES
from libs.testbed.compose.addresses import read_fleet
from libs.testbed.compose.credentials import write_credentials
from libs.testbed.compose.nodes import list_missing
from libs.testbed.kubelet_node import UNINITIALIZED
from libs.testbed.machine_facts import MAX_NODES, make_mixed_fleet

NAMES = tuple(spec.service for spec in SERVICES)
ISSUED = {"metadata": {"name": "csr-1"}, "status": {"certificate": "AAAA"}}


def a_node(**spec: Any) -> dict[str, Any]:
    usable = {"providerID": "aws:///a/i-1", "podCIDRs": ["10.244.0.0/24"]}
    return {"metadata": {"name": "web-1"}, "spec": usable | spec}


def test_a_node_without_taint_with_cidrs_and_certificate_is_usable():
    other = {"key": "example.com/other", "effect": "NoSchedule"}
    for node in (a_node(), a_node(taints=[other])):
        assert list_missing([node], [ISSUED], {"csr-1": "web-1"}) == []


def test_the_missing_parts_of_a_node_are_listed():
    pending = {"metadata": {"name": "csr-1"}, "status": {}}
    bare = {"metadata": {"name": "web-1"}, "spec": {"taints": [UNINITIALIZED]}}
    assert list_missing([bare], [pending], {"csr-1": "web-1"}) == [
        "web-1 lacks initialization, providerID, podCIDRs, certificate"
    ]
    assert list_missing([], [ISSUED], {"csr-1": "web-1"}) == ["web-1 lacks Node"]


def test_the_certificate_of_another_node_does_not_count():
    of_another = {"metadata": {"name": "csr-2"}, "status": {"certificate": "AAAA"}}
    assert list_missing([a_node()], [of_another], {"csr-1": "web-1"}) == ["web-1 lacks certificate"]


def test_no_two_machines_of_the_largest_fleet_share_a_name_or_an_address():
    machines = make_mixed_fleet(MAX_NODES, "test", digits=4)
    assert len({machine.name for machine in machines}) == MAX_NODES
    assert len({ip for machine in machines for ip in machine.reachable_at}) == 2 * MAX_NODES


@pytest.mark.parametrize("text", ["0", "many", "-1", "5001", ""])
def test_an_invalid_number_of_nodes_is_rejected_with_the_reason(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NODES", text)
    with pytest.raises(SystemExit, match="NODES"):
        read_fleet()


def test_the_number_of_nodes_is_configurable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NODES", "2")
    assert [machine.name for machine in read_fleet()] == ["aws-0001", "metal-0002"]


def made(folder: Path) -> Path:
    for name in ("control-plane", "nodes", "talos", *NAMES):
        (folder / name).mkdir()
    for name in NAMES:
        (folder / "keys" / f"compose-nats-{name}").mkdir(parents=True)
        (folder / "keys" / f"compose-nats-{name}" / "seed.nk").write_text(f"seed of {name}")
    (folder / "keys" / "ca.crt").write_text("who vouches for NATS")
    write_credentials(folder, NAMES)
    return folder


def test_each_service_gets_its_own_identity_and_no_other(tmp_path: Path):
    folder = made(tmp_path)
    for name in NAMES:
        has = {path.name for path in (folder / name).iterdir()}
        assert has == {"seed.nk", "ca.crt", "talosconfig" if name == "metadata" else "kubeconfig"}
        assert (folder / name / "seed.nk").read_text() == f"seed of {name}"
        if name != "metadata":
            config = yaml.safe_load((folder / name / "kubeconfig").read_text())
            assert config["users"][0]["name"] == f"talos-ccm-{name}"


def test_only_the_owner_can_read_credentials(tmp_path: Path):
    folder = made(tmp_path)
    written = [path for name in ("nodes", *NAMES) for path in (folder / name).iterdir()]
    assert {path.stat().st_mode & 0o077 for path in written} == {0}
