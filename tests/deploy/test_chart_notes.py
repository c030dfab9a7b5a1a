"""Old values that do something else here are told after the installation."""

from typing import Any

import pytest

from libs.testbed.helm.chart import Values
from tests.deploy.notes import notes

ALL = "`*` selects cloud-node and node-csr-approval; there, cloud-node and cloud-node-lifecycle"
SPOT = "Nodes of preempted GCP spot machines are kept"
PROOF = "deletes a Node only if its machine is proven to be gone"
LIFECYCLE = ["cloud-node", "cloud-node-lifecycle"]


@pytest.mark.parametrize("in_one", [False, True], ids=["deployments", "daemonset"])
@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({}, set()),
        ({"enabledControllers": ["*"]}, {ALL}),
        ({"enabledControllers": ["*", "-node-csr-approval"]}, {ALL}),
        ({"enabledControllers": ["*", "-node-csr-approval", "cloud-node-lifecycle"]}, {SPOT, PROOF}),
        ({"enabledControllers": LIFECYCLE}, {SPOT, PROOF}),
        ({"enabledControllers": LIFECYCLE, "extraArgs": ["--delete-preempted-gcp-spot"]}, {PROOF}),
        (
            {
                "enabledControllers": LIFECYCLE,
                "services.lifecycle.extraArgs": ["--delete_preempted_gcp_spot=false"],
            },
            {PROOF},
        ),
    ],
    ids=str,
)
def test_what_controllers_do_otherwise_than_in_the_reference_is_told(
    said: dict[str, Any], told: set[str], in_one: bool
):
    found = notes(Values(said=said | {"daemonSet.enabled": in_one}))
    assert {each for each in (ALL, SPOT, PROOF) if each in found} == told
    assert ("Other than in the reference controller (docs/migrate.md):" in found) == bool(told)
