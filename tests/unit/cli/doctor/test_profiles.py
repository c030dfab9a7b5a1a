"""The doctor reads each profile of the chart, as it is rendered, for what it is."""

from pathlib import Path

import msgspec
import pytest

from cli.cluster.installation import Installation, find_installations
from cli.cluster.kube_objects import COLLECTIONS, Workload
from cli.doctor.required_permissions import get_role_paths, list_access_reviews
from libs.testbed.helm.chart import parse_manifests

MANIFESTS = Path(__file__).parents[4] / "deploy/k8s/manifests"
NAME = "talos-cloud-controller-manager"
BY_DEFAULT = ("watcher", "metadata", "labeler", "csr")
PROFILES: dict[str, tuple[tuple[str, ...], bool, bool]] = {  # services, NATS, a Talos credential
    "": (BY_DEFAULT, True, True),
    "-ha": (BY_DEFAULT, True, True),
    "-daemonset": (BY_DEFAULT, False, True),
    "-all-in-one": ((*BY_DEFAULT, "ipam"), False, True),
    "-csr-only": (("watcher", "metadata", "csr"), True, False),
}


def objects(profile: str) -> list[dict[str, object]]:
    return parse_manifests((MANIFESTS / f"cloud-controller-manager{profile}.yml").read_text())


def installed(profile: str) -> Installation:
    workloads = [msgspec.convert(o, Workload) for o in objects(profile) if o["kind"] in COLLECTIONS]
    (here,) = find_installations(workloads)
    return here


def test_every_rendered_file_is_among_them():
    rendered = {path.stem.removeprefix("cloud-controller-manager") for path in MANIFESTS.glob("*.yml")}
    assert rendered == set(PROFILES)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_is_read_for_what_it_is(profile: str):
    services, has_nats, asks_talos = PROFILES[profile]
    here = installed(profile)
    assert (here.prefix, here.release, here.namespace) == (NAME, NAME, "kube-system")
    assert here.services == services
    assert (here.nats is not None) is has_nats
    assert here.talos_account == (f"{NAME}-talos-secrets" if asks_talos else "")
    assert here.config_file == (NAME, "ccm-config.yaml")
    assert here.lease == ("kube-system", "cloud-controller-manager-talos")
    assert not here.is_helm_release
    assert here.is_all_in_one is not has_nats


@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_applied_again_is_the_file_of_the_profile(profile: str):
    file = f"deploy/k8s/manifests/cloud-controller-manager{profile}.yml"
    assert file in installed(profile).reapply_command


@pytest.mark.parametrize("profile", PROFILES)
def test_the_roles_that_may_be_missing_are_those_that_the_chart_makes(profile: str):
    """By name and namespace: the fix names them."""
    here = installed(profile)
    made = set()
    for each in objects(profile):
        metadata = each["metadata"]
        assert isinstance(metadata, dict)
        namespace = metadata.get("namespace")
        place = f"/namespaces/{namespace}" if namespace else ""
        made.add(f"/apis/rbac.authorization.k8s.io/v1{place}/{str(each['kind']).lower()}s/{metadata['name']}")
    named = {
        path
        for asked in list_access_reviews(here)
        if asked.is_required
        for path in get_role_paths(here, asked)
    }
    assert named <= made
    if not here.is_all_in_one:  # there, several Roles give the same right: one of them is named
        bindings = {path for path in made if "rolebindings/" in path}
        assert bindings <= named, "a binding that no right is asked for"
