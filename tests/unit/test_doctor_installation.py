"""What `talos-ccm doctor` makes of an installation: workloads, versions, file, rights."""

import json
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from cli.cluster import CannotAsk
from cli.doctor.as_json import diagnosis_json
from cli.doctor.checks.services import pods_of
from cli.doctor.findings import Check, Diagnosis, few, ok, unknown, wrong
from cli.doctor.from_cluster import Source, meant
from cli.doctor.installation import INSTANCE, assumed, chosen, installations
from cli.doctor.judging import CHECKS, diagnose
from cli.doctor.names import NAMES
from cli.doctor.objects import (
    Condition,
    Container,
    ContainerState,
    ContainerStatus,
    Meta,
    Named,
    PodEvent,
    Terminated,
    Waiting,
)
from cli.doctor.rights import Reviewed, questions
from cli.doctor.seen import NOT_ASKED, Absent, NotSeen, Seen
from cli.doctor.text import of_diagnosis
from cli.lines import print_lines
from libs.common.service_spec import SERVICES
from tests.doctor_cases import PREFIX, a_pod, a_workload, an_installation, judged, said, seen

NOT_ALLOWED = NotSeen(why="it takes the right to list pods", right="list pods --namespace kube-system")


def test_all_is_well_where_all_is_well():
    diagnosis = diagnose(seen())
    assert [(c.name, c.state) for c in diagnosis.checks] == [(name, "ok") for name in NAMES]
    assert diagnosis.exit_status == 0


def test_the_names_for_only_are_those_of_the_checks():
    assert tuple(check.name for check in CHECKS) == NAMES


def test_where_nothing_was_seen_nothing_is_called_wrong():
    blind = Seen(at=seen().at, version="0.1.0", installation=assumed("kube-system", "", "it takes a right"))
    diagnosis = diagnose(blind)
    assert {check.state for check in diagnosis.checks} <= {"unknown", "ok"}
    assert diagnosis.exit_status == 2
    for name in ("services", "pod-cidrs", "versions"):
        assert judged(name, blind).state == "unknown", name


def test_the_exit_status_is_that_of_the_worst():
    def status(*findings: object) -> int:
        checks = tuple(Check(name="n", asks="?", findings=(f,)) for f in findings)  # type: ignore[arg-type]
        return Diagnosis(checks=checks).exit_status

    assert status(ok("a")) == 0
    assert status(ok("a"), unknown("b", "fix")) == 2
    assert status(ok("a"), unknown("b", "fix"), wrong("c", "fix")) == 1


def test_what_is_wrong_is_told_first_and_importance_decides_among_equals():
    bad = seen(config="nonsense: true\n", flow=seen().flow, namespace_labels=NOT_ASKED, nodes=NOT_ALLOWED)
    names = [check.name for check in diagnose(bad).worst_first]
    assert names[0] == "config"
    assert names[1:4] == ["kubelets", "serving-certificates", "pod-security"]


def test_the_words_have_each_fix_and_can_be_read_in_a_pipe():
    stream = StringIO()
    told = diagnose(seen(config="nonsense: true\n"))
    print_lines(of_diagnosis(told, "Release x"), Console(file=stream, highlight=False))
    text = stream.getvalue()
    assert text.startswith("Release x\n\nWRONG  config")
    assert "       fix: services that start refuse it" in text
    assert text.endswith("\n13 ok, 1 wrong, 0 cannot be told\n")


def test_json_has_every_check_in_the_order_of_importance():
    document = json.loads(json.dumps(diagnosis_json(diagnose(seen()), an_installation())))
    assert [check["name"] for check in document["checks"]] == list(NAMES)


def test_many_names_are_counted():
    assert few(["b", "a"]) == "a, b"
    assert few(map(str, range(1000, 1010)), 2) == "1000, 1001 and 8 more"


# ---- what is installed


def test_an_installation_is_found_by_what_runs_and_not_by_its_name():
    found = installations([a_workload("watcher"), a_workload("csr"), a_workload("x", command=("nginx",))])
    (here,) = found
    assert (here.prefix, here.services) == (PREFIX, ("watcher", "csr"))
    assert chosen(found, "", "other") is None
    assert chosen(found, "kube-system", PREFIX) is here


def test_two_releases_are_two_installations():
    other = a_workload("watcher")
    meta = msgspec.structs.replace(other.metadata, namespace="edge", labels={INSTANCE: "edge"})
    found = installations([a_workload("watcher"), msgspec.structs.replace(other, metadata=meta)])
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
    all_in_one = a_workload("all", kind="DaemonSet", command=("python", "-m", "services"), args=flags)
    (here,) = installations([all_in_one])
    assert here.services == services
    assert here.all_in_one


def test_a_flag_is_read_in_every_way_that_it_can_be_said():
    container = Container(name="c", args=("--a=1", "--b", "2", "--c", "--a_a=3", "-a", "4"))
    assert container.said("a") == ("1", "4")
    assert (container.said("b"), container.said("c"), container.said("a-a")) == (("2",), ("true",), ("3",))


def test_what_is_applied_again_keeps_the_image_that_runs():
    mirrored = {s: {"image": "registry.example.com/ccm:v0.1.0"} for s in ("watcher",)}
    command = an_installation(**mirrored).apply_again  # type: ignore[arg-type]
    assert "|registry.example.com/ccm:v0.1.0|" in command
    assert "sed" not in an_installation().apply_again


# ---- services


def ill(**status: object) -> str:
    """What is said of a labeler whose pod is so."""
    here = an_installation(labeler={"ready": 0})
    return said("services", seen(here=here, pods=(a_pod("labeler", ready=False, **status),)))


def waiting(reason: str, message: str = "", **more: object) -> dict[str, object]:
    state = ContainerState(waiting=Waiting(reason=reason, message=message))
    return {"container_statuses": (ContainerStatus(name="labeler", state=state, **more),)}  # type: ignore[arg-type]


def test_an_image_that_cannot_be_pulled_is_told_with_what_the_registry_said():
    told = ill(**waiting("ImagePullBackOff", "not found"))
    assert "ImagePullBackOff: not found" in told
    assert "image.repository" in told


def test_a_container_that_ends_again_and_again_is_told_with_its_last_line():
    ended = ContainerState(terminated=Terminated(reason="Error", exit_code=2))
    status = waiting("CrashLoopBackOff", restart_count=7, last_state=ended)
    here = an_installation(labeler={"ready": 0})
    pod = a_pod("labeler", ready=False, **status)
    told = said("services", seen(here=here, pods=(pod,), last_lines={pod.name: "no such flag"}))
    assert "7 times with Error 2; its last line: no such flag" in told
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
        involved_object=Named(name=f"{PREFIX}-metadata-0"),
    )
    here = an_installation(metadata={"ready": 0})
    pods = (a_pod("metadata", ready=False, phase="Pending"),)
    told = said("services", seen(here=here, pods=pods, events=(event,)))
    assert "x-talos-secrets" in told
    assert "see the check talos-credential" in told


def test_pods_that_nobody_makes_or_that_are_refused_are_told():
    here = an_installation(labeler={"ready": 0})
    assert "nobody has made the others" in said("services", seen(here=here, pods=()))
    refused = Condition(type="ReplicaFailure", status="True", message="violates PodSecurity")
    here = an_installation(labeler={"ready": 0, "conditions": (refused,)})
    assert "violates PodSecurity" in said("services", seen(here=here, pods=()))


def test_without_the_right_to_see_pods_it_is_told_that_they_would_tell():
    here = an_installation(labeler={"ready": 0})
    told = said("services", seen(here=here, pods=NOT_ALLOWED))
    assert "kubectl auth can-i list pods --namespace kube-system" in told


def test_an_installation_without_watcher_is_wrong():
    assert "there is no watcher" in said("services", seen(here=an_installation(without=("watcher",))))


def test_a_workloads_pods_are_those_of_its_own_component():
    assert pods_of(a_workload("csr"), [a_pod("csr"), a_pod("labeler")]) == [a_pod("csr")]


# ---- versions


def test_a_second_image_and_another_chart_are_told():
    other = an_installation(csr={"image": "ghcr.io/talos-ccm/talos-cloud-controller-manager:v0.0.9"})
    assert f"v0.0.9 ({PREFIX}-csr)" in said("versions", seen(here=other))
    older = an_installation(csr={"version": "v0.0.9"})
    assert "different charts" in said("versions", seen(here=older))


def test_an_image_of_another_version_than_its_chart_is_told_and_a_tag_of_ones_own_is_not():
    def all_of(image: str) -> Seen:
        return seen(
            here=an_installation(
                watcher={"image": image},
                metadata={"image": image},
                labeler={"image": image},
                csr={"image": image},
                ipam={"image": image},
            )
        )

    assert "the chart of v0.1.0 runs the image r.example.com:5000/ccm:v0.2.0" in said(
        "versions", all_of("r.example.com:5000/ccm:v0.2.0")
    )
    assert judged("versions", all_of("r.example.com:5000/ccm:edge")).state == "ok"
    assert judged("versions", all_of("r.example.com:5000/ccm@sha256:00")).state == "ok"


def test_another_version_of_this_command_is_told():
    assert "this talos-ccm is 0.3.0, and v0.1.0 is installed" in said("versions", seen(version="0.3.0"))


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
        an_installation(watcher={"host_network": True, "ready": ready}), namespace=namespace
    )
    labels = {"pod-security.kubernetes.io/enforce": level} if level else {}
    check = judged("pod-security", seen(here=here, namespace_labels=labels))
    assert check.state == state
    if state == "wrong":
        assert "pod-security.kubernetes.io/enforce=privileged" in check.findings[0].commands[0]


# ---- config


def test_a_file_with_mistakes_is_told_by_line_and_with_the_command_that_tells_all():
    told = said("config", seen(config="transformations:\n  - labelz: {a: b}\n"))
    assert "line 2" in told
    assert r"jsonpath='{.data.ccm-config\.yaml}' | talos-ccm config check -" in told


def test_a_missing_file_is_told_and_one_that_may_not_be_read_is_not_called_wrong():
    assert "has no ccm-config.yaml" in said("config", seen(config=Absent()))
    assert "auth can-i" in said("config", seen(config=NOT_ALLOWED), "unknown")


# ---- rights


def test_each_service_is_asked_for_every_right_of_its_wiring():
    here = an_installation()
    for wiring in SERVICES:
        if not here.runs(wiring.service):
            continue
        wanted = {(r.group, r.resource, v) for r in wiring.policy_rules for v in r.verbs}
        asked = {
            (q.group, q.resource, q.verb) for q in questions(here) if q.service == wiring.service and q.wanted
        }
        assert asked == wanted


def test_the_lease_is_the_one_that_the_watcher_was_told():
    here = an_installation(watcher={"args": ("--leader-elect-resource-name=mine",)})
    assert {q.name for q in questions(here) if q.resource == "leases" and q.name} == {"mine"}
    assert here.lease == ("kube-system", "mine")


def refused(resource: str, service: str, **there: bool) -> str:
    here = an_installation()
    reviews = tuple(
        Reviewed(q, allowed=q.wanted and not (q.resource == resource and q.service == service))
        for q in questions(here)
    )
    root = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    paths = {f"{root}/{plural}/{PREFIX}-{service}": is_there for plural, is_there in there.items()}
    return said("rights", seen(here=here, reviews=reviews, objects_there=paths))


def test_a_missing_role_a_missing_binding_and_a_changed_role_have_their_own_fix():
    told = refused("events", "csr", roles=False, rolebindings=True)
    assert f"there is no Role default/{PREFIX}-csr" in told
    assert "kubectl apply --server-side" in told
    told = refused("events", "csr", roles=True, rolebindings=False)
    assert f"kubectl --namespace default create rolebinding {PREFIX}-csr --role={PREFIX}-csr" in told
    assert "is not as the chart has it" in refused("events", "csr", roles=True, rolebindings=True)


def test_a_right_that_it_must_not_have_is_told():
    here = an_installation()
    reviews = tuple(
        Reviewed(q, allowed=q.wanted or (q.service == "metadata" and q.resource == "serviceaccounts/token"))
        for q in questions(here)
    )
    told = said("rights", seen(here=here, reviews=reviews))
    assert f"{PREFIX}-metadata may create serviceaccounts/token in kube-system" in told


def test_rights_that_cannot_be_asked_for_are_no_missing_ones():
    here = an_installation()
    reviews = tuple(Reviewed(q, why_not="it takes a right") for q in questions(here))
    assert "subjectaccessreviews" in said("rights", seen(here=here, reviews=reviews), "unknown")
    assert said("rights", seen(reviews=NOT_ALLOWED), "unknown")


@pytest.mark.parametrize(
    ("everywhere", "told"), [(True, "in this cluster"), (False, "in namespace kube-system, and you may not")]
)
def test_that_nothing_is_installed_is_said_of_no_more_than_was_looked_at(everywhere: bool, told: str):
    with pytest.raises(CannotAsk, match=f"none of its services is installed {told}"):
        meant(Source(), (), (), everywhere=everywhere)
