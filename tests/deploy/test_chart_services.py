"""What runs with which values: the services that enabledControllers means, told what they understand."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from libs.common.process.assembly import _PORTS_ALONE
from libs.common.process.run import _chosen
from libs.common.process.service import Run
from libs.common.settings.of_process import ProcessSettings
from libs.common.settings.reading import Reading, read_settings
from libs.testbed.helm.chart import Manifest, Values, manifests, of_kind
from services.bootstrap.names import SEED, Names
from services.bootstrap.settings import BootstrapSettings
from services.csr.service import CSR_RUN
from services.ipam.service import IPAM_RUN
from services.labeler.service import LABELER_RUN
from services.lifecycle.service import LIFECYCLE_RUN
from services.metadata.service import METADATA_RUN
from services.metadata.settings import MetadataSettings
from services.watcher.service import WATCHER_RUN
from tests.deploy.profiles import DEPLOYED, PROFILES, WITH_NATS, containers, prefix, rendered, services_in

RUNS: dict[str, Run[Any]] = {
    run.wiring.service: run
    for run in (WATCHER_RUN, METADATA_RUN, LABELER_RUN, CSR_RUN, IPAM_RUN, LIFECYCLE_RUN)
}


def arguments(container: dict[str, Any], found: list[Manifest], folder: Path) -> list[str]:
    """What the container is told, its config file being where a test can put it."""
    config = next(m for m in found if m["kind"] == "ConfigMap")
    path = folder / "ccm-config.yaml"
    path.write_text(config["data"]["ccm-config.yaml"])
    said: list[str] = container["args"]
    assert "--cloud-config=/etc/talos/ccm-config.yaml" in said
    return [f"--cloud-config={path}" if word.startswith("--cloud-config=") else word for word in said]


def reading_of(
    container: dict[str, Any], found: list[Manifest], folder: Path
) -> tuple[list[Run[Any]], Reading]:
    """Which services the container's command runs, and what they make of its arguments."""
    python, m, module = container["command"]
    assert (python, m) == ("python", "-m")
    runs = list(RUNS.values()) if module == "services" else [RUNS[module.removeprefix("services.")]]
    kinds: list[type[msgspec.Struct]] = [*(run.settings for run in runs), ProcessSettings]
    return runs, read_settings(kinds, arguments(container, found, folder), {})


def of_deployments(found: list[Manifest]) -> dict[str, dict[str, Any]]:
    """By service: its container."""
    deployments = of_kind(found, "Deployment").values()
    one = [deployment["spec"]["template"]["spec"]["containers"] for deployment in deployments]
    assert all(len(each) == 1 for each in one)
    return {container["name"]: container for (container,) in one}


@pytest.mark.parametrize("profile", DEPLOYED)
def test_every_service_understands_all_that_it_is_told(profile: str, tmp_path: Path):
    found = rendered(profile)
    for service, container in of_deployments(found).items():
        runs, reading = reading_of(container, found, tmp_path)
        assert [run.wiring.service for run in runs] == [service]
        told = reading.of(ProcessSettings)
        assert told.secure_port == container["ports"][0]["containerPort"]
        assert told.secure_port == _PORTS_ALONE.get(service, 10458)
        assert not told.in_memory(alone=True)


@pytest.mark.parametrize("profile", [name for name in PROFILES if name not in DEPLOYED])
def test_the_one_process_understands_all_that_it_is_told_and_needs_no_nats(profile: str, tmp_path: Path):
    found = rendered(profile)
    (daemon_set,) = of_kind(found, "DaemonSet").values()
    (container,) = containers(daemon_set)
    runs, reading = reading_of(container, found, tmp_path)
    assert reading.of(ProcessSettings).in_memory(alone=False)
    assert not {m["kind"] for m in found} & {"Deployment", "StatefulSet", "PodDisruptionBudget"}
    assert not [m for m in found if "nats" in m["metadata"]["name"]]
    with_rights = {
        name.removeprefix(f"{prefix(profile)}-")
        for kind in ("Role", "ClusterRole")
        for name in {m["metadata"]["name"] for m in found if m["kind"] == kind}
    }
    chosen = {run.wiring.service for run in _chosen(runs, reading)}
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
def test_those_services_are_installed_that_one_process_would_run(
    controllers: list[str], extra: list[str], tmp_path: Path
):
    said = {"enabledControllers": controllers, "extraArgs": extra}
    installed = set(of_deployments(manifests(Values(said=said))))
    found = manifests(Values(said=said | {"daemonSet.enabled": True}))
    (container,) = containers(of_kind(found, "DaemonSet")[prefix("default")])
    runs, reading = reading_of(container, found, tmp_path)
    assert installed == {run.wiring.service for run in _chosen(runs, reading)}


def test_replicas_are_those_asked_for_and_metadata_is_one():
    found = manifests(Values(said={"replicaCount": 2, "services.csr.replicas": 3}))
    head = f"{prefix('default')}-"
    replicas = {
        name.removeprefix(head): d["spec"]["replicas"] for name, d in of_kind(found, "Deployment").items()
    }
    assert replicas == {"watcher": 2, "metadata": 1, "labeler": 2, "csr": 3}


def test_where_no_machine_is_asked_there_is_no_credential_for_any(tmp_path: Path):
    found = rendered("csr-only")
    assert set(services_in("csr-only")) == {"watcher", "metadata", "csr"}
    metadata = of_deployments(found)["metadata"]
    _, reading = reading_of(metadata, found, tmp_path)
    assert reading.of(MetadataSettings).without_talos
    assert not [m for m in found if m["apiVersion"].startswith("talos.dev/")]
    assert "talos-secrets" not in yaml.safe_dump_all(found)


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "csr-only"])
def test_only_the_one_that_asks_machines_holds_the_credential_that_talos_makes(profile: str):
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


@pytest.mark.parametrize("profile", WITH_NATS)
def test_each_service_finds_its_own_key_the_authority_and_the_server(profile: str, tmp_path: Path):
    found, namespace = rendered(profile), PROFILES[profile].namespace
    names = Names(namespace=namespace, prefix=prefix(profile))
    server = of_kind(found, "Service")[names.nats]
    for name, deployment in of_kind(found, "Deployment").items():
        service = name.removeprefix(f"{prefix(profile)}-")
        pod = deployment["spec"]["template"]["spec"]
        told = reading_of(pod["containers"][0], found, tmp_path)[1].of(ProcessSettings)
        secrets = {v["secret"]["secretName"]: v["name"] for v in pod["volumes"] if "secret" in v}
        maps = {v["configMap"]["name"]: v["name"] for v in pod["volumes"] if "configMap" in v}
        mounts = {m["name"]: Path(m["mountPath"]) for m in pod["containers"][0]["volumeMounts"]}
        of_nats = [secret for secret in secrets if secret.startswith(names.nats)]
        assert of_nats == [names.seed_of(service)], "its own key, and nobody else's"
        assert told.nats_nkey_file == mounts[secrets[names.seed_of(service)]] / SEED
        assert told.nats_ca_file == mounts[maps[names.authority]] / "ca.crt"
        (url,) = told.nats_servers
        assert url == f"tls://{names.nats}.{namespace}.svc:{server['spec']['ports'][0]['port']}"
        assert url.removeprefix("tls://").rpartition(":")[0] in names.hosts(), "the certificate is for it"


@pytest.mark.parametrize("profile", WITH_NATS)
def test_bootstrap_and_keeper_understand_what_they_are_told_and_write_where_the_server_reads(profile: str):
    found, namespace = rendered(profile), PROFILES[profile].namespace
    names = Names(namespace=namespace, prefix=prefix(profile))
    stateful_set = of_kind(found, "StatefulSet")[names.nats]
    bootstrap, server, keeper = containers(stateful_set)
    once, kept = (
        read_settings([BootstrapSettings], c["args"], {}).of(BootstrapSettings) for c in (bootstrap, keeper)
    )
    assert (once.keep, kept.keep) == (False, True)
    for settings in (once, kept):
        assert (settings.namespace, settings.prefix) == (namespace, prefix(profile))
        assert settings.replicas == stateful_set["spec"]["replicas"]
        assert server["command"] == ["nats-server", "--config", str(settings.out / "nats.conf")]
        ports = {port["name"]: port["containerPort"] for port in server["ports"]}
        assert ports == {
            "client": settings.client_port,
            "cluster": settings.route_port,
            "monitor": settings.monitor_port,
        }
        mounts = [m["mountPath"] for m in server["volumeMounts"]]
        assert str(settings.store_dir) in mounts
        assert str(settings.out) in mounts
        (data,) = [v for v in stateful_set["spec"]["template"]["spec"]["volumes"] if v["name"] == "data"]
        assert data["emptyDir"]["sizeLimit"] == f"{2 * settings.store_bytes // 2**20}Mi"
    assert keeper["ports"][0]["containerPort"] == kept.secure_port
    assert stateful_set["spec"]["serviceName"] == f"{names.nats}-headless"
    assert f"{names.nats}-headless" in of_kind(found, "Service")


def test_nats_of_ones_own_is_used_with_its_own_keys_and_nothing_of_ours_is_installed(tmp_path: Path):
    found = rendered("external-nats")
    assert not of_kind(found, "StatefulSet")
    for service, container in of_deployments(found).items():
        told = reading_of(container, found, tmp_path)[1].of(ProcessSettings)
        assert told.nats_servers == ("tls://nats-1.example.net:4222", "tls://nats-2.example.net:4222")
        pod = of_kind(found, "Deployment")[f"{prefix('default')}-{service}"]["spec"]["template"]["spec"]
        by_name = {volume["name"]: volume for volume in pod["volumes"]}
        assert by_name["nats-seed"]["secret"]["secretName"] == f"talos-ccm-seed-{service}"
        assert by_name["nats-ca"]["configMap"]["name"] == "talos-ccm-nats-authority"


@pytest.mark.parametrize(("profile", "servers"), [("default", 1), ("ha", 3), ("external-nats", 0)])
def test_the_watcher_has_the_stream_lie_on_every_server_that_the_chart_installs(
    profile: str, servers: int, tmp_path: Path
):
    found = rendered(profile)
    told = reading_of(of_deployments(found)["watcher"], found, tmp_path)[1].of(ProcessSettings)
    assert told.nats_stream_replicas == servers


def test_nats_without_keys_and_authority_is_spoken_to_without(tmp_path: Path):
    said = {"nats.enabled": False, "nats.external.url": "nats://nats.example.net:4222"}
    found = manifests(Values(said=said))
    for container in of_deployments(found).values():
        told = reading_of(container, found, tmp_path)[1].of(ProcessSettings)
        assert (told.nats_nkey_file, told.nats_ca_file) == (None, None)
        assert not [mount for mount in container["volumeMounts"] if "nats" in mount["name"]]


def test_old_values_and_new_ones_become_one_config_file():
    said = {
        "config.global": {"clusterName": "prod"},
        "transformations": [{"name": "web", "labels": {"a": "b"}}],
    }
    found = manifests(Values(said=said))
    config = of_kind(found, "ConfigMap")[prefix("default")]["data"]["ccm-config.yaml"]
    assert yaml.safe_load(config) == {
        "global": {"clusterName": "prod"},
        "transformations": [{"name": "web", "labels": {"a": "b"}}],
    }
