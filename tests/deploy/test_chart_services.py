"""The services that run with given values, their arguments, and their NATS."""

from pathlib import Path

import pytest
import yaml

from libs.common.contract.services import READER_USER
from libs.common.service.run_process import select_definitions
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import read_settings
from libs.testbed.helm.chart import (
    ChartValues,
    find_nats_workload,
    render_manifests,
    select_kind,
    select_service_deployments,
)
from services.bootstrap.resource_names import SEED, ResourceNames
from services.bootstrap.settings import BootstrapSettings
from services.console.settings import ConsoleSettings
from services.csr.settings import CsrSettings
from services.metadata.settings import MetadataSettings
from tests.deploy.profiles import (
    ACCOUNTS,
    DEPLOYED,
    PROFILES,
    WITH_NATS,
    containers,
    of_deployments,
    prefix,
    reading_of,
    rendered,
    services_in,
)


@pytest.mark.parametrize("profile", DEPLOYED)
def test_every_service_accepts_its_arguments(profile: str, tmp_path: Path):
    found = rendered(profile)
    for service, container in of_deployments(found).items():
        runs, reading = reading_of(container, found, tmp_path)
        assert [run.spec.service for run in runs] == [service]
        settings = reading.get(ProcessSettings)
        assert settings.secure_port == container["ports"][0]["containerPort"]
        assert settings.secure_port == runs[0].spec.port
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
    accounts = {f"cloud-{name}" for name in ACCOUNTS} if profile == "daemonset" else set()
    assert chosen == with_rights | {"metadata"} | accounts


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


def test_without_queries_of_machines_there_is_no_talos_credential():
    found = rendered("csr-only")
    assert set(services_in("csr-only")) == {"watcher", "metadata", "csr"}
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


@pytest.mark.parametrize("profile", WITH_NATS)
def test_each_service_has_its_own_key_the_ca_and_the_address_of_the_server(profile: str, tmp_path: Path):
    found, namespace = rendered(profile), PROFILES[profile].namespace
    names = ResourceNames(namespace=namespace, prefix=prefix(profile))
    server = select_kind(found, "Service")[names.nats]
    for name, deployment in select_service_deployments(found).items():
        service = name.removeprefix(f"{prefix(profile)}-")
        pod = deployment["spec"]["template"]["spec"]
        settings = reading_of(pod["containers"][0], found, tmp_path)[1].get(ProcessSettings)
        secrets = {v["secret"]["secretName"]: v["name"] for v in pod["volumes"] if "secret" in v}
        maps = {v["configMap"]["name"]: v["name"] for v in pod["volumes"] if "configMap" in v}
        mounts = {m["name"]: Path(m["mountPath"]) for m in pod["containers"][0]["volumeMounts"]}
        of_nats = [secret for secret in secrets if secret.startswith(names.nats)]
        own = [names.seed_secret(service)] + (
            [names.seed_secret(READER_USER)] if service == "watcher" else []
        )
        assert of_nats == own, "only its own key"
        assert settings.nats_nkey_file == mounts[secrets[names.seed_secret(service)]] / SEED
        assert settings.nats_ca_file == mounts[maps[names.authority]] / "ca.crt"
        (url,) = settings.nats_servers
        assert url == f"tls://{names.nats}.{namespace}.svc:{server['spec']['ports'][0]['port']}"
        assert url.removeprefix("tls://").rpartition(":")[0] in names.list_hosts(), (
            "the certificate is valid for this name"
        )


@pytest.mark.parametrize("profile", [*WITH_NATS, "external-nats"])
def test_talos_ccm_in_the_watchers_pod_finds_nats_and_the_readers_key(profile: str, tmp_path: Path):
    found = rendered(profile)
    pod = select_kind(found, "Deployment")[f"{prefix(profile)}-watcher"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    watchers = reading_of(container, found, tmp_path)[1].get(ProcessSettings)
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert tuple(environment["NATS_URL"].split(",")) == watchers.nats_servers
    assert environment["NATS_CA_FILE"] == str(watchers.nats_ca_file)
    assert environment["NATS_NKEY_FILE"] != str(watchers.nats_nkey_file), (
        "the watcher's own key is in its flag"
    )
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    folder, _, file = environment["NATS_NKEY_FILE"].rpartition("/")
    reader = volumes[mounts[folder]]["secret"]
    own = volumes[mounts[str(Path(watchers.nats_nkey_file or "").parent)]]["secret"]
    assert file == SEED
    assert reader["secretName"] == own["secretName"].removesuffix("watcher") + READER_USER
    assert reader["optional"], "the watcher must start without the reader's key"


@pytest.mark.parametrize("profile", WITH_NATS)
def test_bootstrap_and_keeper_accept_their_arguments_and_write_the_files_that_the_server_reads(
    profile: str,
):
    found, namespace = rendered(profile), PROFILES[profile].namespace
    names = ResourceNames(namespace=namespace, prefix=prefix(profile))
    workload = find_nats_workload(found)
    assert workload is not None
    assert workload["metadata"]["name"] == names.nats
    bootstrap, server, keeper = containers(workload)
    once, kept = (
        read_settings([BootstrapSettings], c["args"], {}).get(BootstrapSettings) for c in (bootstrap, keeper)
    )
    assert (once.keep, kept.keep) == (False, True)
    for settings in (once, kept):
        assert (settings.namespace, settings.prefix) == (namespace, prefix(profile))
        assert settings.replicas == workload["spec"]["replicas"]
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
        (data,) = [v for v in workload["spec"]["template"]["spec"]["volumes"] if v["name"] == "data"]
        assert data["emptyDir"]["sizeLimit"] == f"{2 * settings.store_bytes // 2**20}Mi"
    assert keeper["ports"][0]["containerPort"] == kept.secure_port
    if once.replicas > 1:
        assert workload["spec"]["serviceName"] == f"{names.nats}-headless"
        assert f"{names.nats}-headless" in select_kind(found, "Service")


def test_an_external_nats_is_used_with_its_own_keys_and_none_is_installed(tmp_path: Path):
    found = rendered("external-nats")
    assert find_nats_workload(found) is None
    for service, container in of_deployments(found).items():
        settings = reading_of(container, found, tmp_path)[1].get(ProcessSettings)
        assert settings.nats_servers == ("tls://nats-1.example.net:4222", "tls://nats-2.example.net:4222")
        pod = select_kind(found, "Deployment")[f"{prefix('default')}-{service}"]["spec"]["template"]["spec"]
        by_name = {volume["name"]: volume for volume in pod["volumes"]}
        assert by_name["nats-seed"]["secret"]["secretName"] == f"talos-ccm-seed-{service}"
        assert by_name["nats-ca"]["configMap"]["name"] == "talos-ccm-nats-authority"


@pytest.mark.parametrize(("profile", "servers"), [("default", 1), ("ha", 3), ("external-nats", 0)])
def test_the_stream_has_a_replica_on_every_server_of_the_chart(profile: str, servers: int, tmp_path: Path):
    found = rendered(profile)
    settings = reading_of(of_deployments(found)["watcher"], found, tmp_path)[1].get(ProcessSettings)
    assert settings.nats_stream_replicas == servers


def test_an_external_nats_without_keys_and_ca_is_used_without(tmp_path: Path):
    overrides = {"nats.enabled": False, "nats.external.url": "nats://nats.example.net:4222"}
    found = render_manifests(ChartValues(overrides=overrides))
    for container in of_deployments(found).values():
        settings = reading_of(container, found, tmp_path)[1].get(ProcessSettings)
        assert (settings.nats_nkey_file, settings.nats_ca_file) == (None, None)
        assert not [mount for mount in container["volumeMounts"] if "nats" in mount["name"]]


def test_the_console_is_off_until_a_value_enables_it_and_has_no_rights(tmp_path: Path):
    assert "console" not in of_deployments(rendered("default"))
    traces = "https://traces.example/?node={node}"
    found = render_manifests(
        ChartValues(overrides={"console.enabled": True, "console.traceUrlTemplate": traces})
    )
    runs, reading = reading_of(of_deployments(found)["console"], found, tmp_path)
    assert [run.spec.service for run in runs] == ["console"]
    settings = reading.get(ConsoleSettings)
    assert (settings.address, settings.trace_url_template) == ("127.0.0.1", traces)
    (deployment,) = [
        each for name, each in select_kind(found, "Deployment").items() if name.endswith("-console")
    ]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    account = pod["serviceAccountName"]
    bound = [subject["name"] for each in found for subject in each.get("subjects", ())]
    assert account not in bound
    ports = [port["name"] for container in containers(deployment) for port in container["ports"]]
    assert ports == ["metrics"], "no Service can lead to its page"
    assert not [name for name in select_kind(found, "Service") if name.endswith("-console")]


def test_the_console_runs_in_the_process_of_the_daemonset(tmp_path: Path):
    found = render_manifests(ChartValues(overrides={"daemonSet.enabled": True, "console.enabled": True}))
    (daemon_set,) = select_kind(found, "DaemonSet").values()
    (container,) = containers(daemon_set)
    runs, reading = reading_of(container, found, tmp_path)
    assert "console" in [run.spec.service for run in runs]
    assert reading.get(ConsoleSettings).address == "127.0.0.1"
