"""The permissions in the chart are exactly those of the service specs."""

from collections.abc import Iterable
from typing import Any

import pytest

from libs.common.contract.controllers import is_controller_selected
from libs.common.contract.services import ACCOUNT_CONTROLLERS, SERVICES, PolicyRule, ServiceSpec, expand_cloud
from libs.testbed.helm.chart import ChartValues, render_manifests, select_kind
from services.bootstrap.resource_names import ResourceNames
from services.bootstrap.resource_names import list_policy_rules as bootstrap_rights
from tests.deploy.profiles import (
    DEPLOYED,
    PROFILES,
    WITH_NATS,
    controllers_in,
    prefix,
    rendered,
    services_in,
)

WIRING: dict[str, ServiceSpec] = {
    wiring.service: wiring
    for wiring in (*SERVICES, expand_cloud("prod", *ACCOUNT_CONTROLLERS), expand_cloud("staging-2"))
}
Rule = tuple[str, str, str, str, str]  # namespace, group, resource, verb, name ("" = any)


def rules_of(service: str, profile: str) -> set[Rule]:
    """The rules of the spec that the selected controllers need."""
    controllers = controllers_in(profile)
    return of_wiring(
        rule
        for rule in WIRING[service].policy_rules
        if not rule.controllers or any(is_controller_selected(controllers, each) for each in rule.controllers)
    )


def of_wiring(rights: Iterable[PolicyRule]) -> set[Rule]:
    """Each allowed action."""
    return {
        (right.namespace, right.group, right.resource, verb, name)
        for right in rights
        for verb in right.verbs
        for name in right.resource_names or ("",)
    }


def of_role(role: dict[str, Any], namespace: str) -> set[Rule]:
    """Each action that a Role or ClusterRole allows."""
    return {
        (namespace, group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def granted(profile: str) -> dict[tuple[str, str], set[Rule]]:
    """All allowed actions by ServiceAccount (namespace, name)."""
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
def test_each_service_has_the_permissions_of_its_spec_and_no_other(profile: str):
    given, namespace = granted(profile), PROFILES[profile].namespace
    for service in services_in(profile):
        account = (namespace, f"{account_prefix(profile)}-{service}")
        assert given.pop(account, set()) == rules_of(service, profile), service
    given.pop((namespace, f"{account_prefix(profile)}-nats"), None)
    assert given == {}, "an account without a service has permissions"


@pytest.mark.parametrize("profile", WITH_NATS)
def test_the_bootstrap_has_the_permissions_that_it_declares(profile: str):
    namespace = PROFILES[profile].namespace
    accounts = tuple(each["account"] for each in PROFILES[profile].overrides.get("clouds", ()))
    names = ResourceNames(namespace=namespace, prefix=prefix(profile), cloud_accounts=accounts)
    declared = bootstrap_rights(names)
    assert granted(profile)[namespace, f"{account_prefix(profile)}-nats"] == of_wiring(declared)


@pytest.mark.parametrize("profile", [name for name in PROFILES if name not in DEPLOYED])
def test_the_daemonset_has_the_permissions_of_its_services(profile: str):
    wanted = {"watcher", "metadata", "labeler", "csr"}
    if profile != "daemonset":
        wanted |= {"ipam"}
    if profile == "reference-daemonset":
        wanted |= {"lifecycle"}
    if profile == "daemonset":
        wanted |= {"cloud-prod"}
    together = set().union(*(rules_of(service, profile) for service in wanted))
    assert granted(profile) == {("kube-system", prefix(profile)): together}


@pytest.mark.parametrize("in_one", [False, True], ids=["deployments", "daemonset"])
@pytest.mark.parametrize(
    "overrides",
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
def test_a_second_installation_has_permissions_for_its_own_leases(overrides: dict[str, Any], in_one: bool):
    merged = {"daemonSet.enabled": in_one, "enabledControllers": ["*", "cloud-node-lifecycle"]} | overrides
    roles = [
        m for m in render_manifests(ChartValues(release="second", overrides=merged)) if m["kind"] == "Role"
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


def test_a_lease_in_another_namespace_has_its_role_there():
    found = render_manifests(
        ChartValues(overrides={"extraArgs": ["--leader-elect-resource-namespace=talos"]})
    )
    for kind in ("Role", "RoleBinding"):
        assert select_kind(found, kind)[f"{prefix('default')}-watcher"]["metadata"]["namespace"] == "talos"


@pytest.mark.parametrize("profile", PROFILES)
def test_every_workload_has_an_account_of_the_chart_and_no_other_account_has_permissions(profile: str):
    namespace = PROFILES[profile].namespace
    running = {
        (namespace, workload["spec"]["template"]["spec"]["serviceAccountName"])
        for workload in rendered(profile)
        if workload["kind"] in {"Deployment", "DaemonSet", "StatefulSet"}
    }
    assert running == accounts(profile)
    assert set(granted(profile)) <= running


def test_the_chart_creates_no_account_if_the_operator_has_one():
    found = render_manifests(
        ChartValues(overrides={"serviceAccount.create": False, "serviceAccount.name": "mine"})
    )
    assert not [m for m in found if m["kind"] == "ServiceAccount" and m["apiVersion"] == "v1"]
    watcher = select_kind(found, "Deployment")[f"{prefix('default')}-watcher"]
    assert watcher["spec"]["template"]["spec"]["serviceAccountName"] == "mine-watcher"
