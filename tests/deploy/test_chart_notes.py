"""The notes after an installation list old values that work differently here."""

from typing import Any

import pytest

from libs.testbed.helm.chart import ChartValues
from tests.deploy.notes import notes

ALL = (
    "`*` selects cloud-node and node-csr-approval; in the reference it selects cloud-node and "
    "cloud-node-lifecycle"
)
SPOT = "Nodes of preempted GCP spot machines are kept"
PROOF = "deletes a Node only if its machine is proven to be replaced"
LIFECYCLE = ["cloud-node", "cloud-node-lifecycle"]


@pytest.mark.parametrize("in_one", [False, True], ids=["deployments", "daemonset"])
@pytest.mark.parametrize(
    ("overrides", "noted"),
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
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
def test_differences_from_the_reference_controllers_are_noted(
    overrides: dict[str, Any], noted: set[str], in_one: bool
):
    found = notes(ChartValues(overrides=overrides | {"daemonSet.enabled": in_one}))
    assert {each for each in (ALL, SPOT, PROOF) if each in found} == noted
    assert ("Differences from the reference controller (docs/migrate.md):" in found) == bool(noted)


@pytest.mark.parametrize(
    ("overrides", "is_noted"),
    [
        ({}, False),
        ({"daemonSet.enabled": True}, True),
        ({"daemonSet.enabled": True, "daemonSet.bindAddress": "$(NODE_IP)"}, False),
        ({"daemonSet.enabled": True, "extraArgs": ["--bind-address=0.0.0.0"]}, False),
    ],
    ids=str,
)
def test_metrics_that_only_the_node_reaches_are_noted_with_the_value_to_set(
    overrides: dict[str, Any], is_noted: bool
):
    found = notes(ChartValues(overrides=overrides))
    assert ("For Prometheus, set daemonSet.bindAddress" in found) == is_noted


@pytest.mark.parametrize(
    ("overrides", "is_warned"),
    [
        ({}, False),
        ({"image.tag": "v1.9.0"}, True),
        ({"image.tag": "v1.9"}, True),
        ({"image.tag": "v0.2.0"}, False),
        ({"image.tag": "edge"}, False),
        ({"image.tag": "v1.9.0", "image.digest": "sha256:" + "0" * 64}, False),
    ],
    ids=str,
)
def test_a_tag_of_another_major_version_in_another_repository_causes_a_warning(
    overrides: dict[str, Any], is_warned: bool
):
    found = notes(ChartValues(overrides={"image.repository": "registry.example.com/ours"} | overrides))
    assert ("ImagePullBackOff" in found) == is_warned
