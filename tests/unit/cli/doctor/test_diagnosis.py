"""Findings become a diagnosis; profiles of the chart."""

from pathlib import Path

import msgspec
import pytest

from cli.cluster.installation import (
    PLACEHOLDER,
    Installation,
    find_installations,
)
from cli.cluster.kube_objects import COLLECTIONS, Container, Workload
from cli.cluster.query import ClusterQuery
from cli.cluster.read_cluster import PARTS
from cli.cluster.unavailable import NOT_QUERIED, Unavailable
from cli.command_exit import CommandError
from cli.doctor.command import CHECK_NAMES
from cli.doctor.diagnosis import diagnose, list_parts
from cli.doctor.findings import format_diagnosis
from cli.doctor.read_installation import READERS, select_installation
from cli.doctor.required_permissions import get_role_paths, list_access_reviews
from cli.doctor.snapshot import InstallationSnapshot
from libs.common.contract.services import SERVICES
from libs.testbed.helm.chart import parse_manifests
from tests.architecture.sources import ROOT
from tests.cli_snapshots import render_lines
from tests.doctor_cases import (
    IMAGE,
    PREFIX,
    make_installation,
    make_process,
    make_snapshot,
    make_workload,
)

BY_DEFAULT = ("watcher", "metadata", "labeler", "csr")
FLAW = "nonsense: true\n"  # a --cloud-config with a mistake


def test_all_is_well_where_all_is_well():
    diagnosis = diagnose(make_snapshot())
    assert [(c.name, c.state) for c in diagnosis.checks] == [(name, "ok") for name in CHECK_NAMES]
    assert diagnosis.exit_status == 0


def test_each_part_that_a_check_names_can_be_read():
    assert list_parts() == {part for part in {*PARTS, *READERS} if part not in ("events", "claims")}
    assert list_parts(["config"]) == {"config"}


def test_where_nothing_was_seen_nothing_is_called_wrong():
    blind = InstallationSnapshot(
        at=make_snapshot().at,
        version="0.1.0",
        installation=make_installation(),
    )
    diagnosis = diagnose(blind)
    assert {check.state for check in diagnosis.checks} <= {"unknown", "ok"}
    assert diagnosis.exit_status == 2


def test_what_is_wrong_is_told_first_and_importance_decides_among_equals():
    bad = make_snapshot(config=FLAW, namespace_labels=NOT_QUERIED, nodes=Unavailable(reason="403"))
    diagnosis = diagnose(bad)
    assert diagnosis.exit_status == 1
    names = [check.name for check in diagnosis.worst_first]
    assert names[:4] == ["config", "kubelets", "serving-certificates", "pod-security"]


def test_the_words_have_each_fix_and_can_be_read_in_a_pipe():
    text = render_lines(format_diagnosis(diagnose(make_snapshot(config=FLAW)), "Release x"))
    assert text.startswith("Release x\n\nWRONG  config")
    assert "       fix: new pods reject the file" in text
    assert text.endswith("\n16 ok, 1 wrong, 0 unknown\n")


# ---- what is installed


def test_an_installation_is_found_by_what_runs_and_not_by_its_name():
    found = find_installations(
        [make_workload("watcher"), make_workload("csr"), make_workload("x", command=("nginx",))]
    )
    (here,) = found
    assert (here.prefix, here.services) == (PREFIX, ("watcher", "csr"))
    query = ClusterQuery(namespace="kube-system", release=PREFIX)
    assert select_installation(query, found, is_cluster_wide=True) is here
    with pytest.raises(CommandError, match=f"no such installation; found: .*{PREFIX}"):
        select_installation(ClusterQuery(namespace="", release="other"), found, is_cluster_wide=True)


def test_a_cloud_account_is_a_service_of_the_installation_with_rights_of_its_own():
    controllers = "--controllers=service-lb-controller,node-route-controller"
    flags = ("--cloud-account=hcloud/prod/network/7", "--route-network=prod=7", controllers)
    account = make_workload("cloud-prod", command=("python", "-m", "services.cloud"), args=flags)
    bootstrap = make_workload("nats", command=("python", "-m", "services.bootstrap"))
    (here,) = find_installations([make_workload("console"), account, make_workload("watcher"), bootstrap])
    assert here.services == ("watcher", "cloud-prod", "console")
    reviews = [each for each in list_access_reviews(here) if each.is_required]
    rights = {str(each) for each in reviews if each.service_account == f"{PREFIX}-cloud-prod"}
    assert "update configmaps talos-ccm-routes-prod in kube-node-lease" in rights
    assert not any("services" in each for each in rights), "without a class it makes no load balancers"
    assert "nats-cloud-prod" in " ".join(map(str, reviews)), "the keeper creates its key"


@pytest.mark.parametrize(
    ("flags", "services"),
    [
        (("--controllers=*", "--cloud-account=hcloud/prod"), (*BY_DEFAULT, "cloud-prod")),
        (("--controllers=cloud-node,node-csr-approval",), ("watcher", "metadata", "labeler", "csr")),
        (("--controllers=*", "--allocate-node-cidrs"), ("watcher", "metadata", "labeler", "csr", "ipam")),
        (("--controllers", "node-csr-approval"), ("watcher", "metadata", "csr")),
        (("--controllers=*,cloud-node-lifecycle,-cloud-node",), ("watcher", "metadata", "csr", "lifecycle")),
    ],
)
def test_the_one_process_runs_what_it_is_told(flags: tuple[str, ...], services: tuple[str, ...]):
    all_in_one = make_workload("all", kind="DaemonSet", command=("python", "-m", "services"), args=flags)
    (here,) = find_installations([all_in_one])
    assert here.services == services
    assert here.is_all_in_one


def test_a_flag_is_read_in_every_way_that_it_can_be_said():
    container = Container(name="c", args=("--a=1", "--b", "2", "--c", "--a_a=3", "-a", "4"))
    read = {flag: container.flag_values(flag) for flag in ("a", "b", "c", "a-a")}
    assert read == {"a": ("1", "4"), "b": ("2",), "c": ("true",), "a-a": ("3",)}


def test_what_is_applied_again_keeps_the_image_that_runs():
    assert f"|{IMAGE}|" in make_installation().reapply_command
    unedited = f"{PLACEHOLDER}{PREFIX}:v0.1.0"
    assert "sed" not in make_installation(watcher={"image": unedited}).reapply_command
    assert f'"{unedited}"' in (ROOT / "deploy/k8s/manifests/cloud-controller-manager.yml").read_text(), (
        "the file has it"
    )


@pytest.mark.parametrize(
    ("is_cluster_wide", "told"),
    [(True, "in the cluster"), (False, "in namespace kube-system, and you may not")],
)
def test_that_nothing_is_installed_is_said_of_no_more_than_was_looked_at(is_cluster_wide: bool, told: str):
    with pytest.raises(CommandError, match=f"this controller is not installed {told}"):
        select_installation(ClusterQuery(namespace=""), (), is_cluster_wide=is_cluster_wide)


# ---- which permissions are reviewed


@pytest.mark.parametrize("controllers", ["cloud-node,node-csr-approval", "cloud-node,service"])
def test_each_service_is_asked_for_every_right_of_its_wiring(controllers: str):
    here = make_installation(watcher={"args": (f"--controllers={controllers}",)})
    for wiring in SERVICES:
        if not here.runs_service(wiring.service):
            continue
        wanted = {
            (r.group, r.resource, v)
            for r in wiring.policy_rules
            for v in r.verbs
            if not r.controllers or "service" in controllers
        }
        asked = {
            (q.group, q.resource, q.verb)
            for q in list_access_reviews(here)
            if q.service == wiring.service and q.is_required
        }
        assert asked == wanted


@pytest.mark.parametrize(
    ("flags", "count"), [((), 0), (("--console-exposed",), 2), (("--console-exposed=false",), 0)]
)
def test_the_console_is_asked_for_its_rights_only_if_it_is_exposed(flags: tuple[str, ...], count: int):
    here = msgspec.structs.replace(make_installation(), processes=(make_process("console", args=flags),))
    required = {
        str(each) for each in list_access_reviews(here) if each.service == "console" and each.is_required
    }
    assert len(required) == count


def test_a_review_names_the_subresource_apart():
    reviews = {str(each): each for each in list_access_reviews(make_installation())}
    assert reviews["create pods/exec in kube-system"].attributes == {
        "namespace": "kube-system", "verb": "create", "resource": "pods", "subresource": "exec"
    }  # fmt: skip


def test_the_lease_is_the_one_that_the_watcher_was_told():
    here = make_installation(watcher={"args": ("--leader-elect-resource-name=mine",)})
    assert {q.name for q in list_access_reviews(here) if q.resource == "leases" and q.name} == {"mine"}
    assert here.lease == ("kube-system", "mine")


# ---- profiles


MANIFESTS = Path(__file__).parents[4] / "deploy/k8s/manifests"
NAME = "talos-cloud-controller-manager"
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
    file = f"deploy/k8s/manifests/cloud-controller-manager{profile}.yml"
    assert file in here.reapply_command


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
