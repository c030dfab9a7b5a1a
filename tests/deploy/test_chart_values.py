"""Values reach the services that they are for."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.common.contract.services import ALL_IN_ONE_PEAK_MEBIBYTES, SERVICES
from libs.common.settings.process_settings import ProcessSettings
from libs.testbed.helm.chart import ChartValues, render_manifests, select_kind, select_service_deployments
from services.csr.settings import CsrSettings
from tests.deploy.profiles import ZONE, of_deployments, prefix, reading_of

ALL = ["*", "nodeipam", "cloud-node-lifecycle"]


def test_replicas_are_configurable_except_for_metadata():
    found = render_manifests(ChartValues(overrides={"replicaCount": 2, "services.csr.replicas": 3}))
    head = f"{prefix('default')}-"
    replicas = {
        name.removeprefix(head): d["spec"]["replicas"]
        for name, d in select_service_deployments(found).items()
    }
    assert replicas == {"watcher": 2, "metadata": 1, "labeler": 2, "csr": 3}


@pytest.mark.parametrize("in_one", [False, True], ids=["deployments", "daemonset"])
def test_a_value_for_all_reaches_every_service(in_one: bool, tmp_path: Path):
    overrides = {
        "daemonSet.enabled": in_one,
        "otlpEndpoint": "http://traces.example.net:4318",
        "logFormat": "json",
        "logVerbosityLevel": 4,
        "extraArgs": ["--node-status-update-frequency=1m", "--cluster-name=prod"],
        "extraEnv": [{"name": "OTEL_TRACES_SAMPLER", "value": "traceidratio"}],
        "podAnnotations": {"example.net/owner": "platform"},
        "imagePullSecrets": [{"name": "registry"}],
    }
    found = render_manifests(ChartValues(overrides=overrides))
    running = (*select_service_deployments(found).values(), *select_kind(found, "DaemonSet").values())
    pods = [workload["spec"]["template"] for workload in running]
    assert len(pods) == (1 if in_one else 4)
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        settings = reading_of(container, found, tmp_path)[1].get(ProcessSettings)
        assert settings.otlp_endpoint == "http://traces.example.net:4318"
        assert (settings.logging_format, settings.verbosity) == ("json", 4)
        assert "--cluster-name=prod" in container["args"]
        assert {"name": "OTEL_TRACES_SAMPLER", "value": "traceidratio"} in container["env"]
        assert pod["metadata"]["annotations"] == {"example.net/owner": "platform"}
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]


MEMORY = {spec.service: f"{spec.peak_mebibytes}Mi" for spec in SERVICES}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, MEMORY),
        ({"resources": {"limits": {"cpu": "100m"}}}, MEMORY),
        ({"services.csr.resources": {"requests": {"cpu": "1"}}}, MEMORY),
        ({"resources": None}, MEMORY),
        # Old values keep their request. A limit without a request is the request, for Kubernetes.
        ({"resources": {"requests": {"memory": "64Mi"}}}, dict.fromkeys(MEMORY, "64Mi")),
        ({"resources": {"limits": {"memory": "48Mi"}}}, dict.fromkeys(MEMORY, None)),
        ({"services.csr.resources": {"limits": {"memory": "1Gi"}}}, MEMORY | {"csr": None}),
    ],
    ids=str,
)
def test_a_process_requests_its_measured_memory_unless_the_values_set_memory(
    overrides: dict[str, Any], expected: dict[str, str | None]
):
    found = render_manifests(ChartValues(overrides=overrides | {"enabledControllers": ALL}))
    requested = {
        name: container["resources"].get("requests", {}).get("memory")
        for name, container in of_deployments(found).items()
    }
    assert requested == expected


def test_one_process_requests_the_memory_of_all():
    found = render_manifests(ChartValues(overrides={"daemonSet.enabled": True}))
    (container,) = next(iter(select_kind(found, "DaemonSet").values()))["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["resources"]["requests"] == {"cpu": "10m", "memory": f"{ALL_IN_ONE_PEAK_MEBIBYTES}Mi"}


def test_labels_of_pods_are_added_and_those_of_a_service_too():
    overrides = {
        "podLabels": {"example.net/owner": "platform", "example.net/tier": "1"},
        "services.csr.podLabels": {"example.net/tier": "2"},
    }
    for extra, count in ({}, 5), ({"daemonSet.enabled": True}, 1):
        pods = [
            m["spec"]["template"]["metadata"]["labels"]
            for m in render_manifests(ChartValues(overrides=overrides | extra))
            if "template" in m.get("spec", {})
        ]
        assert len(pods) == count
        for labels in pods:
            is_csr = labels.get("app.kubernetes.io/component") == "csr"
            assert labels["example.net/owner"] == "platform"
            assert labels["example.net/tier"] == ("2" if is_csr else "1")


def test_replicas_of_one_service_are_spread_by_its_own_labels():
    zones: dict[str, Any] = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
    chosen = zones | {"labelSelector": {"matchLabels": {"example.net/tier": "1"}}}
    overrides = {"topologySpreadConstraints": [zones], "services.csr.topologySpreadConstraints": [chosen]}
    for name, deployment in select_service_deployments(
        render_manifests(ChartValues(overrides=overrides))
    ).items():
        (found,) = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
        labels = deployment["spec"]["selector"]
        assert found == (chosen if name.endswith("-csr") else zones | {"labelSelector": labels})


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (
            {"rollingUpdate": {"maxUnavailable": 1}},
            {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        ),
        ({"type": "Recreate", "rollingUpdate": {"maxUnavailable": 1}}, {"type": "Recreate"}),
        ({}, {"type": "RollingUpdate"}),
    ],
    ids=str,
)
def test_a_rolling_update_is_configurable(strategy: dict[str, Any], expected: dict[str, Any]):
    overrides = {f"updateStrategy.{key}": value for key, value in strategy.items()}
    found = render_manifests(ChartValues(overrides=overrides))
    assert [d["spec"]["strategy"] for d in select_service_deployments(found).values()] == [expected] * 4
    if expected["type"] == "RollingUpdate":
        in_one = render_manifests(ChartValues(overrides=overrides | {"daemonSet.enabled": True}))
        assert [d["spec"]["updateStrategy"] for d in select_kind(in_one, "DaemonSet").values()] == [expected]


def test_a_value_for_one_service_reaches_only_that_service(tmp_path: Path):
    own = {
        "extraArgs": ["--csr-in-flight=7"],
        "resources": {"limits": {"memory": "256Mi"}},
        "podAnnotations": {"example.net/csr": "yes"},
        "nodeSelector": {"example.net/pool": "infra"},
        "tolerations": [{"operator": "Exists"}],
    }
    found = render_manifests(
        ChartValues(overrides={"services.csr": own, "podAnnotations": {"example.net/all": "yes"}})
    )
    for name, deployment in select_service_deployments(found).items():
        its_own = name.endswith("-csr")
        pod = deployment["spec"]["template"]
        (container,) = pod["spec"]["containers"]
        reading_of(container, found, tmp_path)
        assert ("--csr-in-flight=7" in container["args"]) == its_own
        assert (container["resources"] == own["resources"]) == its_own
        assert (pod["spec"]["nodeSelector"] == own["nodeSelector"]) == its_own
        assert ({"operator": "Exists"} in pod["spec"]["tolerations"]) == its_own
        annotations = {"example.net/all": "yes"} | (own["podAnnotations"] if its_own else {})  # type: ignore[operator]
        assert pod["metadata"]["annotations"] == annotations


@pytest.mark.parametrize(
    ("overrides", "of_csr"),
    [
        ({}, 300.0),
        ({"extraArgs": ["--metadata-republish-interval=2m"]}, 120.0),
        ({"services.metadata.extraArgs": ["--metadata-republish-interval=20m"]}, 1200.0),
        ({"services.metadata.extraArgs": ["--metadata-republish-interval", "20m"]}, 1200.0),
        (
            {
                "services.metadata.extraArgs": ["--metadata-republish-interval=20m"],
                "services.csr.extraArgs": ["--metadata-republish-interval=5m"],
            },
            300.0,
        ),
    ],
)
def test_csr_gets_the_republish_interval_of_metadata(
    overrides: dict[str, object], of_csr: float, tmp_path: Path
):
    found = render_manifests(ChartValues(overrides=overrides))
    csr = select_service_deployments(found)[f"{prefix('default')}-csr"]
    (container,) = csr["spec"]["template"]["spec"]["containers"]
    _, reading = reading_of(container, found, tmp_path)
    assert reading.get(CsrSettings).republish_interval_seconds == of_csr


def test_extra_objects_are_installed_and_can_use_templates():
    extra = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "{{ .Release.Name }}-dashboards", "namespace": "monitoring"},
    }
    found = render_manifests(ChartValues(release="edge", overrides={"extraObjects": [extra]}))
    assert select_kind(found, "ConfigMap")["edge-dashboards"]["metadata"]["namespace"] == "monitoring"


def test_old_and_new_values_are_merged_into_one_config_file():
    overrides = {
        "config.global": {"clusterName": "prod"},
        "transformations": [{"name": "web", "labels": {"a": "b"}}],
    }
    found = render_manifests(ChartValues(overrides=overrides))
    config = select_kind(found, "ConfigMap")[prefix("default")]["data"]["ccm-config.yaml"]
    assert yaml.safe_load(config) == {
        "global": {"clusterName": "prod"},
        "transformations": [{"name": "web", "labels": {"a": "b"}}],
    }
