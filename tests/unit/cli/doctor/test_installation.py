"""What `talos-ccm doctor` makes of an installation: workloads, versions, file, rights."""

import json
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from cli.cluster.chart_labels import INSTANCE
from cli.cluster.installation import (
    PLACEHOLDER,
    assume_installation,
    choose_installation,
    find_installations,
)
from cli.cluster.kube_listing import ClusterUnavailable
from cli.cluster.kube_objects import Condition, Container, Meta, NameReference, PodEvent
from cli.cluster.pods import ContainerState, ContainerStatus, TerminatedState, WaitingState
from cli.cluster.unavailable import NOT_QUERIED, AbsentObject, Unavailable
from cli.doctor.as_json import diagnosis_to_json
from cli.doctor.check_names import CHECK_NAMES
from cli.doctor.check_report import CheckReport, Diagnosis
from cli.doctor.checks.services import select_pods
from cli.doctor.diagnosis import CHECKS, diagnose
from cli.doctor.findings import format_names, report_ok, report_unknown, report_wrong
from cli.doctor.from_cluster import DoctorQuery, select_installation
from cli.doctor.installation_snapshot import InstallationSnapshot
from cli.doctor.required_permissions import AccessReviewResult, list_access_reviews
from cli.doctor.text import format_diagnosis
from cli.lines import print_lines
from libs.common.contract.services import SERVICES
from tests.architecture.sources import ROOT
from tests.doctor_cases import (
    IMAGE,
    PREFIX,
    format_observations,
    make_installation,
    make_pod,
    make_snapshot,
    make_workload,
    run_check,
)

NOT_ALLOWED = Unavailable(
    reason="it takes the right to list pods", required_permission="list pods --namespace kube-system"
)


def test_all_is_well_where_all_is_well():
    diagnosis = diagnose(make_snapshot())
    assert [(c.name, c.state) for c in diagnosis.checks] == [(name, "ok") for name in CHECK_NAMES]
    assert diagnosis.exit_status == 0


def test_the_names_for_only_are_those_of_the_checks():
    assert tuple(check.name for check in CHECKS) == CHECK_NAMES


def test_where_nothing_was_seen_nothing_is_called_wrong():
    blind = InstallationSnapshot(
        at=make_snapshot().at,
        version="0.1.0",
        installation=assume_installation("kube-system", "", "it takes a right"),
    )
    diagnosis = diagnose(blind)
    assert {check.state for check in diagnosis.checks} <= {"unknown", "ok"}
    assert diagnosis.exit_status == 2
    for name in ("services", "pod-cidrs", "versions"):
        assert run_check(name, blind).state == "unknown", name


def test_the_exit_status_is_that_of_the_worst():
    def status(*findings: object) -> int:
        checks = tuple(CheckReport(name="n", question="?", findings=(f,)) for f in findings)  # type: ignore[arg-type]
        return Diagnosis(checks=checks).exit_status

    assert status(report_ok("a")) == 0
    assert status(report_ok("a"), report_unknown("b", "fix")) == 2
    assert status(report_ok("a"), report_unknown("b", "fix"), report_wrong("c", "fix")) == 1


def test_what_is_wrong_is_told_first_and_importance_decides_among_equals():
    bad = make_snapshot(
        config="nonsense: true\n", flow=make_snapshot().flow, namespace_labels=NOT_QUERIED, nodes=NOT_ALLOWED
    )
    names = [check.name for check in diagnose(bad).worst_first]
    assert names[0] == "config"
    assert names[1:4] == ["kubelets", "serving-certificates", "pod-security"]


def test_the_words_have_each_fix_and_can_be_read_in_a_pipe():
    stream = StringIO()
    told = diagnose(make_snapshot(config="nonsense: true\n"))
    print_lines(format_diagnosis(told, "Release x"), Console(file=stream, highlight=False))
    text = stream.getvalue()
    assert text.startswith("Release x\n\nWRONG  config")
    assert "       fix: new pods reject the file" in text
    assert text.endswith("\n13 ok, 1 wrong, 0 unknown\n")


def test_json_has_every_check_in_the_order_of_importance():
    document = json.loads(json.dumps(diagnosis_to_json(diagnose(make_snapshot()), make_installation())))
    assert [check["name"] for check in document["checks"]] == list(CHECK_NAMES)


def test_many_names_are_counted():
    assert format_names(["b", "a"]) == "a, b"
    assert format_names(map(str, range(1000, 1010)), 2) == "1000, 1001 and 8 more"


# ---- what is installed


def test_an_installation_is_found_by_what_runs_and_not_by_its_name():
    found = find_installations(
        [make_workload("watcher"), make_workload("csr"), make_workload("x", command=("nginx",))]
    )
    (here,) = found
    assert (here.prefix, here.services) == (PREFIX, ("watcher", "csr"))
    assert choose_installation(found, "", "other") is None
    assert choose_installation(found, "kube-system", PREFIX) is here


def test_two_releases_are_two_installations():
    other = make_workload("watcher")
    meta = msgspec.structs.replace(other.metadata, namespace="edge", labels={INSTANCE: "edge"})
    found = find_installations([make_workload("watcher"), msgspec.structs.replace(other, metadata=meta)])
    assert [one.namespace for one in found] == ["edge", "kube-system"]


@pytest.mark.parametrize(
    ("flags", "services"),
    [
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
    assert container.flag_values("a") == ("1", "4")
    assert (container.flag_values("b"), container.flag_values("c"), container.flag_values("a-a")) == (
        ("2",),
        ("true",),
        ("3",),
    )


def test_what_is_applied_again_keeps_the_image_that_runs():
    assert f"|{IMAGE}|" in make_installation().reapply_command
    unedited = f"{PLACEHOLDER}{PREFIX}:v0.1.0"
    assert "sed" not in make_installation(watcher={"image": unedited}).reapply_command
    assert f'"{unedited}"' in (ROOT / "deploy/k8s/manifests/cloud-controller-manager.yml").read_text(), (
        "the file has it"
    )


# ---- services


def ill(**status: object) -> str:
    """Return the observations about a labeler with this pod status."""
    here = make_installation(labeler={"ready": 0})
    return format_observations(
        "services", make_snapshot(here=here, pods=(make_pod("labeler", ready=False, **status),))
    )


def waiting(reason: str, message: str = "", **more: object) -> dict[str, object]:
    state = ContainerState(waiting=WaitingState(reason=reason, message=message))
    return {"container_statuses": (ContainerStatus(name="labeler", state=state, **more),)}  # type: ignore[arg-type]


def test_an_image_that_cannot_be_pulled_is_told_with_what_the_registry_said():
    told = ill(**waiting("ImagePullBackOff", "not found"))
    assert "ImagePullBackOff: not found" in told
    assert "image.repository" in told


def test_a_container_that_ends_again_and_again_is_told_with_its_last_line():
    ended = ContainerState(terminated=TerminatedState(reason="Error", exit_code=2))
    status = waiting("CrashLoopBackOff", restart_count=7, last_state=ended)
    here = make_installation(labeler={"ready": 0})
    pod = make_pod("labeler", ready=False, **status)
    told = format_observations(
        "services", make_snapshot(here=here, pods=(pod,), last_lines={pod.name: "no such flag"})
    )
    assert "7 times with Error 2; last log line: no such flag" in told
    assert f"kubectl --namespace kube-system logs {pod.name} --container labeler --previous" in told


def test_a_pod_that_fits_nowhere_a_secret_that_is_missing_and_what_is_not_ready_are_told():
    unscheduled = Condition(type="PodScheduled", status="False", message="0/3 nodes are available")
    assert "0/3 nodes are available" in ill(phase="Pending", conditions=(unscheduled,))
    running = (ContainerStatus(name="labeler"),)
    assert "its container labeler is not ready" in ill(container_statuses=running)
    event = PodEvent(
        metadata=Meta(name="e"),
        type="Warning",
        reason="FailedMount",
        message='secret "x-talos-secrets" not found',
        involved_object=NameReference(name=f"{PREFIX}-metadata-0"),
    )
    here = make_installation(metadata={"ready": 0})
    pods = (make_pod("metadata", ready=False, phase="Pending"),)
    told = format_observations("services", make_snapshot(here=here, pods=pods, events=(event,)))
    assert "x-talos-secrets" in told
    assert "see the check talos-credential" in told


def test_pods_that_nobody_makes_or_that_are_refused_are_told():
    here = make_installation(labeler={"ready": 0})
    assert "the other pods were not created" in format_observations(
        "services", make_snapshot(here=here, pods=())
    )
    refused = Condition(type="ReplicaFailure", status="True", message="violates PodSecurity")
    here = make_installation(labeler={"ready": 0, "conditions": (refused,)})
    assert "violates PodSecurity" in format_observations("services", make_snapshot(here=here, pods=()))


def test_without_the_right_to_see_pods_it_is_told_that_they_would_tell():
    here = make_installation(labeler={"ready": 0})
    told = format_observations("services", make_snapshot(here=here, pods=NOT_ALLOWED))
    assert "kubectl auth can-i list pods --namespace kube-system" in told


def test_an_installation_without_watcher_is_wrong():
    assert "watcher is not installed" in format_observations(
        "services", make_snapshot(here=make_installation(without=("watcher",)))
    )


def test_a_workloads_pods_are_those_of_its_own_component():
    assert select_pods(make_workload("csr"), [make_pod("csr"), make_pod("labeler")]) == [make_pod("csr")]


# ---- versions


def test_a_second_image_and_another_chart_are_told():
    other = make_installation(csr={"image": "registry.example.com/talos-cloud-controller-manager:v0.0.9"})
    assert f"v0.0.9 ({PREFIX}-csr)" in format_observations("versions", make_snapshot(here=other))
    older = make_installation(csr={"version": "v0.0.9"})
    assert "different chart versions" in format_observations("versions", make_snapshot(here=older))


def test_an_image_of_another_version_than_its_chart_is_told_and_a_tag_of_ones_own_is_not():
    def all_of(image: str) -> InstallationSnapshot:
        return make_snapshot(
            here=make_installation(
                watcher={"image": image},
                metadata={"image": image},
                labeler={"image": image},
                csr={"image": image},
                ipam={"image": image},
            )
        )

    assert "chart version v0.1.0 runs image r.example.com:5000/ccm:v0.2.0" in format_observations(
        "versions", all_of("r.example.com:5000/ccm:v0.2.0")
    )
    assert run_check("versions", all_of("r.example.com:5000/ccm:edge")).state == "ok"
    assert run_check("versions", all_of("r.example.com:5000/ccm@sha256:00")).state == "ok"


def test_another_version_of_this_command_is_told():
    assert ("this talos-ccm has version 0.3.0, but v0.1.0 is installed") in format_observations(
        "versions", make_snapshot(version="0.3.0")
    )


# ---- pod-security


@pytest.mark.parametrize(
    ("namespace", "level", "ready", "state"),
    [
        ("kube-system", "", 0, "ok"),
        ("talos-system", "", 1, "ok"),
        ("talos-system", "", 0, "wrong"),
        ("talos-system", "baseline", 1, "wrong"),
        ("talos-system", "privileged", 0, "ok"),
    ],
)
def test_the_host_network_has_to_be_allowed(namespace: str, level: str, ready: int, state: str):
    here = msgspec.structs.replace(
        make_installation(watcher={"host_network": True, "ready": ready}), namespace=namespace
    )
    labels = {"pod-security.kubernetes.io/enforce": level} if level else {}
    check = run_check("pod-security", make_snapshot(here=here, namespace_labels=labels))
    assert check.state == state
    if state == "wrong":
        assert "pod-security.kubernetes.io/enforce=privileged" in check.findings[0].commands[0]


# ---- config


def test_a_file_with_mistakes_is_told_by_line_and_with_the_command_that_tells_all():
    told = format_observations("config", make_snapshot(config="transformations:\n  - labelz: {a: b}\n"))
    assert "line 2" in told
    assert r"jsonpath='{.data.ccm-config\.yaml}' | talos-ccm config check -" in told


def test_a_missing_file_is_told_and_one_that_may_not_be_read_is_not_called_wrong():
    assert "has no ccm-config.yaml" in format_observations("config", make_snapshot(config=AbsentObject()))
    assert "auth can-i" in format_observations("config", make_snapshot(config=NOT_ALLOWED), "unknown")


# ---- rights


def test_each_service_is_asked_for_every_right_of_its_wiring():
    here = make_installation()
    for wiring in SERVICES:
        if not here.runs_service(wiring.service):
            continue
        wanted = {(r.group, r.resource, v) for r in wiring.policy_rules for v in r.verbs}
        asked = {
            (q.group, q.resource, q.verb)
            for q in list_access_reviews(here)
            if q.service == wiring.service and q.is_required
        }
        assert asked == wanted


def test_the_lease_is_the_one_that_the_watcher_was_told():
    here = make_installation(watcher={"args": ("--leader-elect-resource-name=mine",)})
    assert {q.name for q in list_access_reviews(here) if q.resource == "leases" and q.name} == {"mine"}
    assert here.lease == ("kube-system", "mine")


def refused(resource: str, service: str, **there: bool) -> str:
    here = make_installation()
    reviews = tuple(
        AccessReviewResult(
            q, is_allowed=q.is_required and not (q.resource == resource and q.service == service)
        )
        for q in list_access_reviews(here)
    )
    root = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    paths = {f"{root}/{plural}/{PREFIX}-{service}": is_there for plural, is_there in there.items()}
    return format_observations("rights", make_snapshot(here=here, reviews=reviews, objects_there=paths))


def test_a_missing_role_a_missing_binding_and_a_changed_role_have_their_own_fix():
    told = refused("events", "csr", roles=False, rolebindings=True)
    assert f"Role default/{PREFIX}-csr does not exist" in told
    assert "kubectl apply --server-side" in told
    told = refused("events", "csr", roles=True, rolebindings=False)
    assert f"kubectl --namespace default create rolebinding {PREFIX}-csr --role={PREFIX}-csr" in told
    assert "differs from the chart" in refused("events", "csr", roles=True, rolebindings=True)


def test_a_right_that_it_must_not_have_is_told():
    here = make_installation()
    reviews = tuple(
        AccessReviewResult(
            q, is_allowed=q.is_required or (q.service == "metadata" and q.resource == "serviceaccounts/token")
        )
        for q in list_access_reviews(here)
    )
    told = format_observations("rights", make_snapshot(here=here, reviews=reviews))
    assert f"{PREFIX}-metadata may create serviceaccounts/token in kube-system" in told


def test_rights_that_cannot_be_asked_for_are_no_missing_ones():
    here = make_installation()
    reviews = tuple(AccessReviewResult(q, error="it takes a right") for q in list_access_reviews(here))
    assert "subjectaccessreviews" in format_observations(
        "rights", make_snapshot(here=here, reviews=reviews), "unknown"
    )
    assert format_observations("rights", make_snapshot(reviews=NOT_ALLOWED), "unknown")


@pytest.mark.parametrize(
    ("everywhere", "told"), [(True, "in the cluster"), (False, "in namespace kube-system, and you may not")]
)
def test_that_nothing_is_installed_is_said_of_no_more_than_was_looked_at(everywhere: bool, told: str):
    with pytest.raises(ClusterUnavailable, match=f"this controller is not installed {told}"):
        select_installation(DoctorQuery(), (), (), everywhere=everywhere)
