"""NATS installed by the chart, or external: services, server and bootstrap use the same names."""

from pathlib import Path

import pytest

from libs.common.contract.services import READER_USER
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
from tests.deploy.commands import of_deployments, reading_of
from tests.deploy.profiles import PROFILES, WITH_NATS, containers, prefix, rendered


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
