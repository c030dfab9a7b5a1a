"""Who may do what once the chart is installed: what the wiring says, and nobody else anything."""

from collections.abc import Iterable
from typing import Any

import pytest

from libs.common.contract.service_spec import PolicyRule, ServiceSpec
from libs.common.contract.services import CLAIM_PAGES_NAMESPACE, SERVICES
from libs.testbed.helm.chart import ChartValues, render_manifests, select_kind
from services.bootstrap.policy_rules import list_policy_rules as bootstrap_rights
from services.bootstrap.resource_names import ResourceNames
from tests.deploy.profiles import DEPLOYED, PROFILES, WITH_NATS, prefix, rendered, services_in

WIRING: dict[str, ServiceSpec] = {wiring.service: wiring for wiring in SERVICES}
Rule = tuple[str, str, str, str, str]  # namespace, group, resource, verb, name ("" = any)


def of_wiring(rights: Iterable[PolicyRule]) -> set[Rule]:
    """Each single thing that may be done."""
    return {
        (right.namespace, right.group, right.resource, verb, name)
        for right in rights
        for verb in right.verbs
        for name in right.resource_names or ("",)
    }


def of_role(role: dict[str, Any], namespace: str) -> set[Rule]:
    """The same, of a Role or ClusterRole."""
    return {
        (namespace, group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def granted(profile: str) -> dict[tuple[str, str], set[Rule]]:
    """By ServiceAccount (namespace, name): all that its bindings give it."""
    found = rendered(profile)
    roles = {
        (m["kind"], m["metadata"].get("namespace", ""), m["metadata"]["name"]): m
        for m in found
        if m["kind"] in {"Role", "ClusterRole"}
    }
    given: dict[tuple[str, str], set[Rule]] = {}
    for binding in found:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        namespace, reference = binding["metadata"].get("namespace", ""), binding["roleRef"]
        assert reference["kind"] == binding["kind"].removesuffix("Binding")
        rules = of_role(roles[reference["kind"], namespace, reference["name"]], namespace)
        for subject in binding["subjects"]:
            assert subject["kind"] == "ServiceAccount"
            given.setdefault((subject["namespace"], subject["name"]), set()).update(rules)
    return given


def accounts(profile: str) -> set[tuple[str, str]]:
    return {
        (m["metadata"]["namespace"], m["metadata"]["name"])
        for m in rendered(profile)
        if m["kind"] == "ServiceAccount" and m["apiVersion"] == "v1"
    }


def account_prefix(profile: str) -> str:
    return "ours" if profile == "elsewhere" else prefix(profile)


@pytest.mark.parametrize("profile", DEPLOYED)
def test_each_service_has_the_rights_of_its_wiring_and_no_other(profile: str):
    given, namespace = granted(profile), PROFILES[profile].namespace
    for service in services_in(profile):
        account = (namespace, f"{account_prefix(profile)}-{service}")
        assert given.pop(account, set()) == of_wiring(WIRING[service].policy_rules), service
    given.pop((namespace, f"{account_prefix(profile)}-nats"), None)
    assert given == {}, "somebody has rights who is no service"


@pytest.mark.parametrize("profile", WITH_NATS)
def test_the_bootstrap_has_the_rights_that_it_declares(profile: str):
    namespace = PROFILES[profile].namespace
    declared = bootstrap_rights(ResourceNames(namespace=namespace, prefix=prefix(profile)))
    assert granted(profile)[namespace, f"{account_prefix(profile)}-nats"] == of_wiring(declared)


@pytest.mark.parametrize("profile", [name for name in PROFILES if name not in DEPLOYED])
def test_the_one_process_has_the_rights_of_the_services_in_it_together(profile: str):
    wanted = {"watcher", "metadata", "labeler", "csr"}
    if profile != "daemonset":
        wanted |= {"ipam"}
    if profile == "reference-daemonset":
        wanted |= {"lifecycle"}
    together = set().union(*(of_wiring(WIRING[service].policy_rules) for service in wanted))
    assert granted(profile) == {("kube-system", prefix(profile)): together}


@pytest.mark.parametrize("in_one", [False, True], ids=["deployments", "daemonset"])
@pytest.mark.parametrize(
    "said",
    [
        {"extraArgs": ["--leader-elect-resource-name=second", "--lifecycle-lease-name=second-lifecycle"]},
        {
            "extraArgs": [
                "--leader-elect-resource-name",
                "second",
                "--lifecycle_lease_name",
                "second-lifecycle",
            ]
        },
        {
            "extraArgs": ["--leader-elect-resource-name=first"],
            "services.watcher.extraArgs": ["--leader-elect-resource-name=second"],
            "services.lifecycle.extraArgs": ["--lifecycle-lease-name=second-lifecycle"],
        },
    ],
    ids=["for all", "in two words", "for one"],
)
def test_a_second_installation_has_the_right_to_the_leases_that_it_names(said: dict[str, Any], in_one: bool):
    told = {"daemonSet.enabled": in_one, "enabledControllers": ["*", "cloud-node-lifecycle"]} | said
    roles = [
        m for m in render_manifests(ChartValues(release="second", overrides=told)) if m["kind"] == "Role"
    ]
    leases = {
        (role["metadata"]["name"].rpartition("-")[2], role["metadata"]["namespace"], name)
        for role in roles
        for *_, resource, verb, name in of_role(role, "")
        if resource == "leases" and verb == "update"
    }
    assert leases == {
        ("watcher", "kube-system", "second"),
        ("lifecycle", "kube-system", "second-lifecycle"),
    }


def test_a_lease_in_another_namespace_is_its_holders_there():
    found = render_manifests(
        ChartValues(overrides={"extraArgs": ["--leader-elect-resource-namespace=talos"]})
    )
    for kind in ("Role", "RoleBinding"):
        assert select_kind(found, kind)[f"{prefix('default')}-watcher"]["metadata"]["namespace"] == "talos"


@pytest.mark.parametrize("profile", PROFILES)
def test_whoever_has_rights_or_runs_has_an_account_that_the_chart_makes(profile: str):
    namespace = PROFILES[profile].namespace
    running = {
        (namespace, workload["spec"]["template"]["spec"]["serviceAccountName"])
        for workload in rendered(profile)
        if workload["kind"] in {"Deployment", "DaemonSet", "StatefulSet"}
    }
    assert running == accounts(profile)
    assert set(granted(profile)) <= running


def test_no_account_is_made_where_the_operator_has_his_own():
    found = render_manifests(
        ChartValues(overrides={"serviceAccount.create": False, "serviceAccount.name": "mine"})
    )
    assert not [m for m in found if m["kind"] == "ServiceAccount" and m["apiVersion"] == "v1"]
    watcher = select_kind(found, "Deployment")[f"{prefix('default')}-watcher"]
    assert watcher["spec"]["template"]["spec"]["serviceAccountName"] == "mine-watcher"


@pytest.mark.parametrize("profile", PROFILES)
def test_nobody_makes_tokens_and_nobody_but_the_bootstrap_reads_a_secret(profile: str):
    for account, rules in granted(profile).items():
        resources = {resource for _, _, resource, _, _ in rules}
        assert not resources & {"serviceaccounts", "serviceaccounts/token", "pods/exec", "*"}
        assert not {verb for *_, verb, _ in rules} & {"*", "impersonate", "bind", "escalate"}
        assert ("secrets" in resources) == account[1].endswith("-nats")


@pytest.mark.parametrize("profile", PROFILES)
def test_no_service_touches_a_config_map_of_those_that_others_read(profile: str):
    """CoreDNS' configuration, ours, NATS' authority: who may write them is soon everybody else."""
    for account, rules in granted(profile).items():
        places = {rule[0] for rule in rules if rule[2] == "configmaps"}
        assert places <= ({account[0]} if account[1].endswith("-nats") else {CLAIM_PAGES_NAMESPACE})


@pytest.mark.parametrize("profile", PROFILES)
def test_only_lifecycle_may_delete_and_it_is_there_only_where_it_is_asked_for(profile: str):
    deleting = {
        account for account, rules in granted(profile).items() if any(r[3] == "delete" for r in rules)
    }
    asked = profile in {"reference", "reference-daemonset", "elsewhere"}
    assert len(deleting) == asked
    assert all(name.endswith("-lifecycle") or profile == "reference-daemonset" for _, name in deleting)
