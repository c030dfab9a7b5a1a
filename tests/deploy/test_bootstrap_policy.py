"""A ValidatingAdmissionPolicy restricts the NATS bootstrap if the cluster serves that kind."""

import pytest

from libs.testbed.helm.chart import ChartValues, HelmError, render_manifests
from libs.testbed.helm.renders import MANIFESTS, RENDERED_FILES
from tests.deploy.notes import notes
from tests.deploy.profiles import POLICY

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
