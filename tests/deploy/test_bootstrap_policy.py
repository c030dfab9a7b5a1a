"""The account that makes NATS' keys is restricted wherever the cluster serves the kind that restricts it."""

import pytest

from libs.testbed.helm.chart import ChartValues, HelmError, render_manifests
from libs.testbed.helm.renders import MANIFESTS, RENDERED_FILES
from tests.deploy.notes import notes
from tests.deploy.profiles import POLICY

POD = "v1/Pod"  # every cluster lists it; a render without a cluster lists no kinds
SERVED = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
BETA = "admissionregistration.k8s.io/v1beta1/ValidatingAdmissionPolicy"
WANTED = "nats.bootstrap.admissionPolicy"
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
    "said", [{WANTED: False}, {"nats.enabled": False, "nats.external.url": "nats://n:1"}]
)
def test_it_is_left_out_where_it_is_not_wanted_or_restricts_nobody(said):
    assert policies(ChartValues(overrides=said)) == set()
    assert (UNRESTRICTED in notes(ChartValues(overrides=said))) == (WANTED in said)


def test_the_one_process_needs_none():
    values = ChartValues(overrides={"daemonSet.enabled": True})
    assert policies(values) == set()
    assert UNRESTRICTED not in notes(values)


def test_who_asks_for_it_gets_it_or_a_failed_install():
    assert policies(ChartValues(overrides={WANTED: True}, api_versions=(POD, SERVED))) == POLICY
    with pytest.raises(HelmError, match=r"is true, and this cluster \(v1.29.15\) does not serve"):
        render_manifests(ChartValues(overrides={WANTED: True}, kubernetes="1.29.15", api_versions=(POD,)))


@pytest.mark.parametrize("name", RENDERED_FILES)
def test_a_committed_manifest_says_what_kubernetes_1_29_does_not_serve(name: str):
    text = (MANIFESTS / name).read_text()
    head = text.partition("---")[0]
    has_policy = "kind: ValidatingAdmissionPolicyBinding\n" in text
    assert ("Kubernetes 1.29" in head) == has_policy
    assert has_policy == ("services.bootstrap" in text)
