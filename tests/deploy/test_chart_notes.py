"""The notes of an install, and the policy that restricts the bootstrap of NATS."""

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest

from libs.testbed.helm.chart import (
    CHART,
    ChartValues,
    HelmError,
    parse_manifests,
    render_manifests,
    render_text,
)
from libs.testbed.helm.renders import MANIFESTS, RENDERED_FILES
from tests.deploy.profiles import POLICY

# `helm template` omits NOTES.txt, so a copy of the chart renders it into an object.
_OBJECT: Final = 'kind: Notes\ntext: {{ tpl (.Files.Get "NOTES.copy") . | toJson }}\n'


def notes(values: ChartValues) -> str:
    """The notes for these values. Raises HelmError."""
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder) / "chart"
        shutil.copytree(CHART, chart)
        (chart / "templates" / "NOTES.txt").rename(chart / "NOTES.copy")
        (chart / "templates" / "notes.yaml").write_text(_OBJECT)
        (found,) = [each for each in parse_manifests(render_text(values, chart)) if each["kind"] == "Notes"]
    text: str = found["text"]
    return text


ALL = (
    "`*` selects cloud-node and node-csr-approval; in the reference it selects cloud-node and "
    "cloud-node-lifecycle"
)
SPOT = "Nodes of preempted GCP spot machines are kept"
PROOF = "deletes a Node only if its machine is proven to be replaced"
DIFFERENCES = "Differences from the reference controller (docs/migrate.md):"
METRICS = "For Prometheus, set daemonSet.bindAddress"  # only the node reaches them
PULL = "ImagePullBackOff"  # the tag is of another major version
LIFECYCLE = ["cloud-node", "cloud-node-lifecycle"]


@pytest.mark.parametrize(
    ("overrides", "noted"),
    [
        ({}, set()),
        ({"enabledControllers": ["*"]}, {DIFFERENCES, ALL}),
        ({"enabledControllers": ["*", "-node-csr-approval"]}, {DIFFERENCES, ALL}),
        (
            {"enabledControllers": ["*", "-node-csr-approval", "cloud-node-lifecycle"]},
            {DIFFERENCES, SPOT, PROOF},
        ),
        (
            {"enabledControllers": LIFECYCLE, "daemonSet.enabled": True},
            {DIFFERENCES, SPOT, PROOF, METRICS},
        ),
        (
            {"enabledControllers": LIFECYCLE, "extraArgs": ["--delete-preempted-gcp-spot"]},
            {DIFFERENCES, PROOF},
        ),
        (
            {
                "enabledControllers": LIFECYCLE,
                "services.lifecycle.extraArgs": ["--delete_preempted_gcp_spot=false"],
            },
            {DIFFERENCES, PROOF},
        ),
        ({"daemonSet.enabled": True}, {METRICS}),
        ({"daemonSet.enabled": True, "daemonSet.bindAddress": "$(NODE_IP)"}, set()),
        ({"daemonSet.enabled": True, "extraArgs": ["--bind-address=0.0.0.0"]}, set()),
        ({"image.tag": "v1.9.0"}, {PULL}),
        ({"image.tag": "v1.9"}, {PULL}),
        ({"image.tag": "v0.2.0"}, set()),
        ({"image.tag": "edge"}, set()),
        ({"image.tag": "v1.9.0", "image.digest": "sha256:" + "0" * 64}, set()),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
def test_what_an_operator_may_not_expect_is_noted(overrides: dict[str, Any], noted: set[str]):
    found = notes(ChartValues(overrides={"image.repository": "registry.example.com/ours"} | overrides))
    assert {each for each in (DIFFERENCES, ALL, SPOT, PROOF, METRICS, PULL) if each in found} == noted


@pytest.mark.parametrize(
    ("namespace", "command"),
    [("kube-system", "talos-ccm status"), ("ccm", "talos-ccm status --namespace ccm")],
)
def test_the_notes_name_a_namespace_that_status_does_not_read_by_default(namespace: str, command: str):
    assert f"  {command}\n" in notes(ChartValues(namespace=namespace))


POD = "v1/Pod"  # every cluster lists it; a render without a cluster lists no kinds
SERVED = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
BETA = "admissionregistration.k8s.io/v1beta1/ValidatingAdmissionPolicy"
POLICY_VALUE = "nats.bootstrap.admissionPolicy"
UNRESTRICTED = "may create a Secret of any name and type in namespace kube-system"


def policies(values: ChartValues) -> set[str]:
    return {manifest["kind"] for manifest in render_manifests(values)} & POLICY


@pytest.mark.parametrize(
    ("kubernetes", "served", "found"),
    [
        ("1.36.0", (), POLICY),
        ("1.30.0", (), POLICY),
        ("1.30.1-eks-1234", (), POLICY),
        ("1.29.15", (), set()),
        ("1.36.0", (POD, SERVED), POLICY),
        ("1.36.0", (POD,), set()),
        ("1.29.15", (POD, BETA), set()),
    ],
)
def test_the_policy_is_installed_where_the_cluster_serves_its_kind(
    kubernetes: str, served: tuple[str, ...], found: set[str]
):
    values = ChartValues(kubernetes=kubernetes, api_versions=served)
    assert policies(values) == found
    assert (UNRESTRICTED in notes(values)) == (not found)


@pytest.mark.parametrize(
    "overrides", [{POLICY_VALUE: False}, {"nats.enabled": False, "nats.external.url": "nats://n:1"}]
)
def test_the_policy_is_omitted_if_disabled_or_without_a_bootstrap(overrides):
    assert policies(ChartValues(overrides=overrides)) == set()
    assert (UNRESTRICTED in notes(ChartValues(overrides=overrides))) == (POLICY_VALUE in overrides)


def test_the_daemonset_has_no_policy():
    values = ChartValues(overrides={"daemonSet.enabled": True})
    assert policies(values) == set()
    assert UNRESTRICTED not in notes(values)


def test_an_explicitly_enabled_policy_is_installed_or_the_install_fails():
    assert policies(ChartValues(overrides={POLICY_VALUE: True}, api_versions=(POD, SERVED))) == POLICY
    with pytest.raises(HelmError, match=r"is true, and this cluster \(v1.29.15\) does not serve"):
        render_manifests(
            ChartValues(overrides={POLICY_VALUE: True}, kubernetes="1.29.15", api_versions=(POD,))
        )


@pytest.mark.parametrize("name", RENDERED_FILES)
def test_a_committed_manifest_names_the_objects_that_kubernetes_1_29_does_not_serve(name: str):
    text = (MANIFESTS / name).read_text()
    head = text.partition("---")[0]
    has_policy = "kind: ValidatingAdmissionPolicyBinding\n" in text
    assert ("Kubernetes 1.29" in head) == has_policy
    assert has_policy == ("services.bootstrap" in text)
