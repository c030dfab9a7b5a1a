"""The chart gives each cloud account a process with a credential and the few rights that it needs."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from libs.clouds.instances import Anchor
from libs.common.contract.instance_metadata import METADATA_PROVIDERS
from libs.common.contract.instances import CLOUD_PROVIDERS
from libs.common.settings.read_settings import read_settings
from libs.testbed.helm.chart import ChartValues, HelmError, Manifest, render_manifests, select_kind
from services.bootstrap.settings import BootstrapSettings
from services.cloud.balancer_settings import AccountBalancers
from services.cloud.core.balancers.balancer_record import BalancerAccount
from services.cloud.settings import CloudAccountSettings, CloudSettings
from services.labeler.settings import LabelerSettings
from services.metadata.settings import MetadataSettings
from tests.deploy.profiles import (
    ACCOUNTS,
    CLOUDS,
    PROFILES,
    containers,
    of_deployments,
    prefix,
    reading_of,
    rendered,
)

FLAG = "--cloud-metadata-accounts="
BALANCERS = AccountBalancers(
    account=BalancerAccount(name="prod", load_balancer_class="example.com/hcloud", is_default=True),
    options={"HCLOUD_NETWORK": "4711", "HCLOUD_LOAD_BALANCERS_USE_PRIVATE_IP": "true"},
)
SECRETS = {"prod": ("hcloud", "token"), "staging-2": ("clouds", "staging")}


def deployment_of(account: str, found: list[Manifest]) -> Manifest:
    return select_kind(found, "Deployment")[f"{prefix('elsewhere')}-cloud-{account}"]


def credentials_of(workload: Manifest) -> dict[str, tuple[str, str]]:
    """The Secret and its key behind each file of a credential that the only container reads."""
    pod = workload["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume.get("secret", {}) for volume in pod["volumes"]}
    (container,) = pod["containers"]
    files = {}
    for mount in container["volumeMounts"]:
        if mount["mountPath"].startswith("/etc/clouds/"):
            secret = volumes[mount["name"]]
            (item,) = secret["items"]
            assert (mount["readOnly"], secret["optional"], secret["defaultMode"]) == (True, True, 0o440)
            files[f"{mount['mountPath']}/{item['path']}"] = (secret["secretName"], item["key"])
    return files


@pytest.mark.parametrize("account", ACCOUNTS)
def test_an_account_has_one_pod_with_its_credential_alone(account: str, tmp_path: Path):
    found = rendered("elsewhere")
    deployment = deployment_of(account, found)
    spec = deployment["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    has_balancers = account == "prod"
    assert spec["template"]["spec"].get("automountServiceAccountToken", True) is has_balancers
    assert credentials_of(deployment) == {f"/etc/clouds/{account}/credential": SECRETS[account]}
    (container,) = containers(deployment)
    settings = reading_of(container, found, tmp_path)[1].get(CloudSettings)
    assert settings.account == CloudAccountSettings(
        provider="hcloud",
        name=account,
        credential=Path(f"/etc/clouds/{account}/credential"),
        anchor=Anchor("network", "4711") if account == "prod" else None,
    )
    assert settings.balancers == (BALANCERS if has_balancers else None)


def test_one_process_reads_the_credentials_of_all_accounts():
    (daemon_set,) = select_kind(rendered("daemonset"), "DaemonSet").values()
    assert credentials_of(daemon_set) == {
        f"/etc/clouds/{account}/credential": SECRETS[account] for account in ACCOUNTS
    }


def test_no_other_pod_reads_a_credential_of_a_cloud():
    names = {secret for secret, _ in SECRETS.values()}
    holders = {
        workload["metadata"]["name"].removeprefix(f"{prefix('elsewhere')}-")
        for kind in ("Deployment", "StatefulSet")
        for workload in select_kind(rendered("elsewhere"), kind).values()
        for volume in workload["spec"]["template"]["spec"]["volumes"]
        if volume.get("secret", {}).get("secretName") in names
    }
    assert holders == {f"cloud-{account}" for account in ACCOUNTS}


def test_the_bootstrap_makes_a_key_for_each_account():
    (nats,) = select_kind(rendered("elsewhere"), "StatefulSet").values()
    (bootstrap,) = nats["spec"]["template"]["spec"]["initContainers"]
    settings = read_settings([BootstrapSettings], bootstrap["args"], {}).get(BootstrapSettings)
    assert settings.cloud_accounts == ACCOUNTS


def test_every_process_that_needs_it_knows_which_accounts_supply_metadata(tmp_path: Path):
    found = rendered("elsewhere")
    assert {
        name: [each.removeprefix(FLAG) for each in container["args"] if each.startswith(FLAG)]
        for name, container in of_deployments(found).items()
        if any(each.startswith(FLAG) for each in container["args"])
    } == {name: ["hcloud/prod/4712"] for name in ("metadata", "labeler", "cloud-prod")}
    (daemon_set,) = select_kind(rendered("daemonset"), "DaemonSet").values()
    (container,) = containers(daemon_set)
    parsed = reading_of(container, rendered("daemonset"), tmp_path)[1]
    kinds: list[type[Any]] = [MetadataSettings, LabelerSettings, CloudSettings]
    assert {parsed.get(kind).metadata_accounts for kind in kinds} == {("hcloud/prod/4712",)}


@pytest.mark.parametrize("provider", CLOUD_PROVIDERS)
def test_the_chart_knows_which_clouds_supply_metadata(provider: str):
    clouds = [CLOUDS[0] | {"provider": provider}]
    values = ChartValues(overrides={**PROFILES["elsewhere"].overrides, "clouds": clouds})
    with contextlib.nullcontext() if provider in METADATA_PROVIDERS else pytest.raises(HelmError):
        render_manifests(values)


def test_routes_have_the_network_of_the_account_and_start_without_a_route():
    clouds = [dict(CLOUDS[0])]
    tolerating = {
        name.removeprefix(f"{prefix('elsewhere')}-")
        for name, workload in select_kind(rendered("elsewhere"), "Deployment").items()
        for each in workload["spec"]["template"]["spec"]["tolerations"]
        if each["key"] == "node.kubernetes.io/network-unavailable"
    }
    assert tolerating == {"cloud-prod"}
    (container,) = [
        each for name, each in of_deployments(rendered("elsewhere")).items() if name == "cloud-prod"
    ]
    assert "--route-network=prod=4711" in container["args"]
    openstack = {"provider": "openstack", "account": "north", "secretRef": {"name": "north"}}
    in_file = ChartValues(
        overrides={"enabledControllers": ["*", "route"], "clouds": [openstack | {"routes": {"network": ""}}]}
    )
    (container,) = [
        each for name, each in of_deployments(render_manifests(in_file)).items() if name == "cloud-north"
    ]
    assert "--route-network=north" in container["args"], "its credential file names the router"
    clouds[0]["routes"] = {"network": "4711", "podNetworks": ["10.244.0.0/16", "fd00::/48"]}
    values = ChartValues(overrides={"enabledControllers": ["*", "route"], "clouds": clouds})
    manifests = render_manifests(values)
    (container,) = [each for name, each in of_deployments(manifests).items() if name == "cloud-prod"]
    networks = [each for each in container["args"] if each.startswith("--route-pod-network")]
    assert networks == [f"--route-pod-network=prod={each}" for each in ("10.244.0.0/16", "fd00::/48")]
    kinds = {
        (rule["resources"][0], *rule.get("resourceNames", ()))
        for manifest in manifests
        if manifest["kind"] in {"Role", "ClusterRole"} and manifest["metadata"]["name"].endswith("cloud-prod")
        for rule in manifest["rules"]
    }
    assert kinds == {
        ("nodes/status",),
        ("events",),
        ("configmaps",),
        ("configmaps", "talos-ccm-routes-prod"),
        ("leases",),
        ("leases", "talos-ccm-cloud-prod"),
    }


@pytest.mark.parametrize("is_single", [False, True])
def test_without_an_account_with_load_balancers_no_process_watches_services(is_single: bool):
    overrides = {"enabledControllers": ["*", "service"], "clouds": CLOUDS, "daemonSet.enabled": is_single}
    found = render_manifests(ChartValues(overrides=overrides))
    workloads = select_kind(found, "DaemonSet" if is_single else "Deployment")
    for workload in workloads.values():
        for container in containers(workload):
            arguments = container.get("args", ())
            selections = [each for each in arguments if each.startswith("--controllers=")]
            assert set(selections) <= {"--controllers=*"}
    rules = [
        rule
        for kind in ("ClusterRole", "Role")
        for role in select_kind(found, kind).values()
        for rule in role["rules"]
    ]
    assert not [rule for rule in rules if "services" in rule["resources"]]


def test_values_of_cloud_reach_every_account_and_once_the_process_of_all():
    flag = "--cloud-endpoint=https://cloud.example/v1"
    own: dict[str, Any] = {"clouds": CLOUDS, "services.cloud.extraArgs": [flag]}
    for is_single in (False, True):
        found = render_manifests(ChartValues(overrides=own | {"daemonSet.enabled": is_single}))
        names = [
            workload["metadata"]["name"].removeprefix(prefix("default"))
            for kind in ("Deployment", "DaemonSet")
            for workload in select_kind(found, kind).values()
            for container in containers(workload)
            for argument in container.get("args", ())
            if argument == flag
        ]
        assert names == ([""] if is_single else [f"-cloud-{account}" for account in ACCOUNTS])


@pytest.mark.parametrize("profile", ["elsewhere", "daemonset"])
def test_an_account_takes_the_name_of_no_other_volume(profile: str):
    """The volume of the config file is called cloud-config."""
    clouds = [CLOUDS[0] | {"account": "config"}]
    values = ChartValues(overrides={**PROFILES[profile].overrides, "clouds": clouds})
    for workload in render_manifests(values):
        volumes = workload.get("spec", {}).get("template", {}).get("spec", {}).get("volumes", [])
        assert len({volume["name"] for volume in volumes}) == len(volumes)
