"""The services that run with given values, and their arguments."""

from pathlib import Path

import pytest
import yaml

from libs.common.contract.services import SERVICES
from libs.common.service.run_process import select_definitions
from libs.common.settings.process_settings import ProcessSettings
from libs.testbed.helm.chart import ChartValues, render_manifests, select_kind
from services.csr.settings import CsrSettings
from services.metadata.settings import MetadataSettings
from tests.deploy.commands import of_deployments, reading_of
from tests.deploy.profiles import DEPLOYED, PROFILES, containers, prefix, rendered, services_in


@pytest.mark.parametrize("profile", DEPLOYED)
def test_every_service_accepts_its_arguments(profile: str, tmp_path: Path):
    found = rendered(profile)
    for service, container in of_deployments(found).items():
        runs, reading = reading_of(container, found, tmp_path)
        assert [run.spec.service for run in runs] == [service]
        settings = reading.get(ProcessSettings)
        assert settings.secure_port == container["ports"][0]["containerPort"]
        assert settings.secure_port == {spec.service: spec.port for spec in SERVICES}[service]
        assert not settings.uses_memory_bus(is_standalone=True)


@pytest.mark.parametrize("profile", [name for name in PROFILES if name not in DEPLOYED])
def test_the_daemonset_accepts_its_arguments_and_needs_no_nats(profile: str, tmp_path: Path):
    found = rendered(profile)
    (daemon_set,) = select_kind(found, "DaemonSet").values()
    (container,) = containers(daemon_set)
    runs, reading = reading_of(container, found, tmp_path)
    assert reading.get(ProcessSettings).uses_memory_bus(is_standalone=False)
    assert not {m["kind"] for m in found} & {"Deployment", "StatefulSet", "PodDisruptionBudget"}
    assert not [m for m in found if "nats" in m["metadata"]["name"]]
    with_rights = {
        name.removeprefix(f"{prefix(profile)}-")
        for kind in ("Role", "ClusterRole")
        for name in {m["metadata"]["name"] for m in found if m["kind"] == kind}
    }
    chosen = {run.spec.service for run in select_definitions(runs, reading)}
    assert chosen - {"metadata"} == with_rights


@pytest.mark.parametrize(
    ("controllers", "extra"),
    [
        (["cloud-node"], []),
        (["*"], []),
        (["*", "-cloud-node"], []),
        (["-node-csr-approval", "*"], []),
        (["node-csr-approval"], []),
        (["certificatesigningrequest-approving-controller", "cloud-node-controller"], []),
        (["cloud-node", "node-ipam-controller"], []),
        (["nodeipam"], []),
        (["cloud-node-lifecycle-controller"], []),
        (["*", "cloud-node-lifecycle", "route", "service"], []),
        (["cloud-node"], ["--allocate-node-cidrs"]),
        (["cloud-node"], ["--allocate-node-cidrs=true"]),
        (["cloud-node"], ["--allocate-node-cidrs=false"]),
        (["cloud-node", "-node-ipam-controller"], ["--allocate-node-cidrs"]),
        (["cloud-node", "node-ipam-controller"], ["--allocate-node-cidrs=false"]),
        (["cloud-node", "-cloud-node", "nodeipam"], []),
    ],
    ids=str,
)
def test_the_deployments_are_the_services_that_the_daemonset_would_run(
    controllers: list[str], extra: list[str], tmp_path: Path
):
    overrides = {"enabledControllers": controllers, "extraArgs": extra}
    installed = set(of_deployments(render_manifests(ChartValues(overrides=overrides))))
    found = render_manifests(ChartValues(overrides=overrides | {"daemonSet.enabled": True}))
    (container,) = containers(select_kind(found, "DaemonSet")[prefix("default")])
    runs, reading = reading_of(container, found, tmp_path)
    assert installed == {run.spec.service for run in select_definitions(runs, reading)}


def test_without_queries_of_machines_there_is_no_talos_credential(tmp_path: Path):
    found = rendered("csr-only")
    assert set(services_in("csr-only")) == {"watcher", "metadata", "csr"}
    _, of_metadata = reading_of(of_deployments(found)["metadata"], found, tmp_path)
    _, of_csr = reading_of(of_deployments(found)["csr"], found, tmp_path)
    assert of_metadata.get(MetadataSettings).without_talos
    assert of_csr.get(CsrSettings).without_talos
    assert not [m for m in found if m["apiVersion"].startswith("talos.dev/")]
    assert "talos-secrets" not in yaml.safe_dump_all(found)


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "csr-only"])
def test_only_the_pod_that_queries_machines_has_the_talos_credential(profile: str):
    found = rendered(profile)
    (resource,) = [m for m in found if m["apiVersion"] == "talos.dev/v1alpha1"]
    assert resource["spec"] == {"roles": ["os:reader"]}
    secret = resource["metadata"]["name"]
    holders = set()
    for workload in found:
        if workload["kind"] not in {"Deployment", "DaemonSet", "StatefulSet"}:
            continue
        volumes = workload["spec"]["template"]["spec"]["volumes"]
        if any(v.get("secret", {}).get("secretName") == secret for v in volumes):
            holders.add(workload["metadata"]["name"])
    assert holders == {f"{prefix(profile)}-metadata" if profile in DEPLOYED else prefix(profile)}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, (False, False)),
        ({"talos.enabled": False}, (True, True)),
        ({"services.metadata.extraArgs": ["--without-talos"]}, (True, True)),
        ({"extraArgs": ["--without-talos", "--service-cluster-ip-range=10.96.0.0/12"]}, (True, True)),
        ({"talos.enabled": False, "services.metadata.extraArgs": ["--without-talos=false"]}, (False, False)),
    ],
    ids=str,
)
def test_csr_has_the_flag_without_talos_if_metadata_has_it(
    overrides: dict[str, object], expected: tuple[bool, bool], tmp_path: Path
):
    networks = {"services.csr.extraArgs": ["--service-cluster-ip-range=10.96.0.0/12"]}
    found = render_manifests(
        ChartValues(overrides={"enabledControllers": ["node-csr-approval"], **networks, **overrides})
    )
    containers_by_service = of_deployments(found)
    readings = {
        service: reading_of(containers_by_service[service], found, tmp_path)[1]
        for service in ("metadata", "csr")
    }
    settings = (readings["metadata"].get(MetadataSettings), readings["csr"].get(CsrSettings))
    assert (settings[0].without_talos, settings[1].without_talos) == expected
