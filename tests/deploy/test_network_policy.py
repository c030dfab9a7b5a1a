"""Optional objects of the chart: network policies, and those for metrics, alerts and dashboards."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.common.contract.services import SERVICES
from libs.testbed.helm.chart import (
    CHART,
    ChartValues,
    Manifest,
    render_manifests,
    select_kind,
)
from tests.deploy.profiles import (
    PROFILES,
    WITH_CONTROLLERS,
    WITH_NATS,
    containers,
    prefix,
    rendered,
    workloads,
)

EGRESS: dict[str, Any] = {
    "networkPolicy.egress.enabled": True,
    "networkPolicy.egress.nodeCIDRs": ["192.0.2.0/24"],
    "networkPolicy.egress.cloudCIDRs": ["198.51.100.0/24"],
    "networkPolicy.egress.cloudPorts": [443, 8774],
    "enabledControllers": ["*", "nodeipam", "cloud-node-lifecycle", "service", "route"],
    "clouds": WITH_CONTROLLERS,
}
CLOUD_API = "198.51.100.0/24"
COMPONENTS = len(SERVICES) + len(WITH_CONTROLLERS) + 1  # and NATS
NODES = "192.0.2.0/24"
DNS_PODS, LOCAL_DNS = "kube-dns, node-local-dns in kube-system", "169.254.20.10/32"


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert selector.keys() == {"matchLabels"}
    return bool(selector["matchLabels"].items() <= labels.items())


def component_of(manifest: Manifest) -> str:
    name: str = manifest["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
    return name


@pytest.mark.parametrize("profile", WITH_NATS)
def test_only_pods_of_the_release_reach_nats_and_prometheus_reaches_the_keeper(profile: str):
    policy = select_kind(rendered(profile), "NetworkPolicy")[f"{prefix(profile)}-nats"]["spec"]
    pods = {component_of(w): w["spec"]["template"]["metadata"]["labels"] for w in workloads(profile)}
    assert {name for name, labels in pods.items() if matches(policy["podSelector"], labels)} == {"nats"}
    stranger = {"app.kubernetes.io/name": "talos-cloud-controller-manager"}
    callers = {}
    for rule in policy["ingress"]:
        (port,) = [each["port"] for each in rule["ports"]]
        peers = [peer["podSelector"] for peer in rule.get("from", [{"podSelector": {"matchLabels": {}}}])]
        found = {name for name, labels in pods.items() if any(matches(peer, labels) for peer in peers)}
        is_open = any(matches(peer, stranger) for peer in peers)
        callers[port] = (found, is_open)
    assert callers == {
        "client": (set(pods), False),
        "cluster": ({"nats"}, False),
        "metrics": (set(pods), True),  # the keeper's
    }
    (nats,) = [w for w in workloads(profile) if component_of(w) == "nats"]
    ports = {port["name"] for c in containers(nats) for port in c.get("ports", ())}
    assert ports - callers.keys() == {"monitor"}, "only the kubelet needs it"


def test_another_client_of_nats_can_be_allowed():
    console = {"namespaceSelector": {"matchLabels": {"team": "platform"}}}
    found = render_manifests(ChartValues(overrides={"networkPolicy.natsFrom": [console]}))
    (policy,) = select_kind(found, "NetworkPolicy").values()
    assert [console in rule.get("from", ()) for rule in policy["spec"]["ingress"]] == [True, False, False]


def test_health_and_metrics_of_every_pod_can_be_left_to_prometheus():
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    found = render_manifests(ChartValues(overrides={"networkPolicy.metricsFrom": [prometheus]}))
    policies = select_kind(found, "NetworkPolicy")
    of_metrics = policies[f"{prefix('default')}-metrics"]["spec"]
    for workload in (m for m in found if m["kind"] == "Deployment"):
        assert matches(of_metrics["podSelector"], workload["spec"]["template"]["metadata"]["labels"])
        assert "metrics" in {port["name"] for c in containers(workload) for port in c.get("ports", ())}
    assert of_metrics["ingress"] == [
        {"from": [prometheus], "ports": [{"port": "metrics", "protocol": "TCP"}]}
    ]
    of_nats = policies[f"{prefix('default')}-nats"]["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in of_nats] == ["client", "cluster"], "the keeper included"


@pytest.mark.parametrize("profile", [name for name in PROFILES if name not in WITH_NATS])
def test_without_nats_or_on_the_host_network_there_is_no_policy(profile: str):
    assert not select_kind(rendered(profile), "NetworkPolicy")


def expected_connections(component: str) -> set[tuple[str, int]]:
    """What a component needs, by the service table: NATS, kube-apiserver, the API of Talos or of a cloud."""
    if component.startswith("cloud-"):
        api = {(NODES, 443), (NODES, 6443)} if component == "cloud-prod" else set()
        return {("nats", 4222), (CLOUD_API, 443), (CLOUD_API, 8774), *api}
    rows = {spec.service: spec for spec in SERVICES}
    ports = []
    if component == "nats" or rows[component].policy_rules:
        ports += [443, 6443]
    if component != "nats" and "talosconfig" in rows[component].secrets:
        ports.append(50000)
    return {("nats", 6222 if component == "nats" else 4222), *((NODES, port) for port in ports)}


def test_each_component_may_open_only_the_connections_that_it_needs():
    found = render_manifests(ChartValues(overrides=EGRESS))
    policies = {
        name: each["spec"]
        for name, each in select_kind(found, "NetworkPolicy").items()
        if each["spec"]["policyTypes"] == ["Egress"]
    }
    pods = [m for m in found if m["kind"] in {"Deployment", "StatefulSet"}]
    assert len(policies) == len(pods) == COMPONENTS
    for workload in pods:
        labels, component = workload["spec"]["template"]["metadata"]["labels"], component_of(workload)
        (policy,) = [each for each in policies.values() if matches(each["podSelector"], labels)]
        opened = {
            (describe_peer(peer), port["port"])
            for rule in policy["egress"]
            for peer in rule["to"]
            for port in rule["ports"]
        }
        assert opened == {(DNS_PODS, 53), (LOCAL_DNS, 53)} | expected_connections(component)


def describe_peer(peer: dict[str, Any]) -> str:
    match peer:
        case {"ipBlock": {"cidr": cidr}}:
            return str(cidr)
        case {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}:
            (expression,) = peer["podSelector"]["matchExpressions"]
            return f"{', '.join(expression['values'])} in {namespace}"
        case {"podSelector": {"matchLabels": labels}}:
            return str(labels["app.kubernetes.io/component"])
    raise AssertionError(peer)


def test_cilium_allows_nodes_and_the_api_server_by_entities():
    found = render_manifests(ChartValues(overrides=EGRESS | {"networkPolicy.egress.cilium": True}))
    policies = select_kind(found, "CiliumNetworkPolicy")
    assert len(policies) == COMPONENTS
    assert list(select_kind(found, "NetworkPolicy")) == [f"{prefix('default')}-nats"], "of ingress alone"
    entities = {
        443: {"kube-apiserver"},
        6443: {"kube-apiserver"},
        50000: {"host", "remote-node", "kube-apiserver"},
    }
    for policy in policies.values():
        component = policy["metadata"]["labels"]["app.kubernetes.io/component"]
        assert policy["spec"]["endpointSelector"]["matchLabels"]["app.kubernetes.io/component"] == component
        opened = {
            (peer, int(port["port"]))
            for rule in policy["spec"]["egress"]
            for peer in describe_cilium_peers(rule)
            for to in rule["toPorts"]
            for port in to["ports"]
        }
        expected = expected_connections(component)
        nodes = {(entity, port) for peer, port in expected if peer == NODES for entity in entities[port]}
        dns = {(DNS_PODS, 53), (LOCAL_DNS, 53), ("host", 53)}
        assert opened == dns | expected | nodes


def describe_cilium_peers(rule: dict[str, Any]) -> list[str]:
    match rule:
        case {"toEntities": names} | {"toCIDR": names}:
            return list(names)
        case {"toEndpoints": [{"matchLabels": {"k8s:io.kubernetes.pod.namespace": namespace}} as pods]}:
            (expression,) = pods["matchExpressions"]
            return [f"{', '.join(expression['values'])} in {namespace}"]
        case {"toEndpoints": [{"matchLabels": labels}]}:
            return [labels["app.kubernetes.io/component"]]
    raise AssertionError(rule)


def test_more_egress_is_allowed_to_every_pod():
    traces = {"to": [{"ipBlock": {"cidr": "198.51.100.7/32"}}], "ports": [{"port": 4318, "protocol": "TCP"}]}
    overrides = EGRESS | {
        "otlpEndpoint": "http://198.51.100.7:4318",
        "networkPolicy.egress.extra": [traces],
    }
    policies = select_kind(render_manifests(ChartValues(overrides=overrides)), "NetworkPolicy").values()
    assert all(traces in each["spec"]["egress"] for each in policies if "egress" in each["spec"])


FOLDER = CHART / "files" / "observability"
ALL = {f"metrics.{each}.enabled": True for each in ("podMonitor", "prometheusRule", "dashboards")}
OURS = {"PodMonitor", "PrometheusRule"}


def with_all_enabled(profile: str = "default", **overrides: Any) -> list[Manifest]:
    values = PROFILES[profile]
    merged = dict(values.overrides) | ALL | {key.replace("_", "."): value for key, value in overrides.items()}
    return render_manifests(
        ChartValues(files=values.files, overrides=merged, release=values.release, namespace=values.namespace)
    )


def test_they_are_disabled_by_default():
    found = render_manifests(ChartValues())
    assert not {m["kind"] for m in found} & OURS
    assert not [m for m in found if "dashboard" in m["metadata"]["name"]]


@pytest.mark.parametrize("profile", ["default", "ha", "all-in-one", "elsewhere"])
def test_every_process_with_metrics_is_scraped_with_its_own_labels(profile: str):
    found = with_all_enabled(profile, daemonSet_bindAddress="$(NODE_IP)")
    (monitor,) = select_kind(found, "PodMonitor").values()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    chosen = monitor["spec"]["selector"]["matchLabels"].items()
    for workload in (m for m in found if m["kind"] in {"Deployment", "DaemonSet", "StatefulSet"}):
        assert chosen <= workload["spec"]["template"]["metadata"]["labels"].items()
        serving = [
            c for c in containers(workload) for p in c.get("ports", ()) if p["name"] == endpoint["port"]
        ]
        assert len(serving) == 1
        assert serving[0]["livenessProbe"]["httpGet"]["scheme"].lower() == endpoint["scheme"]


def test_the_alerts_are_those_of_the_file_with_links_to_runbooks():
    base = "https://git.example.net/talos-ccm/blob/v1"
    original = yaml.safe_load((FOLDER / "rules.yaml").read_text())
    plain = select_kind(with_all_enabled(), "PrometheusRule")[prefix("default")]["spec"]
    assert plain == original
    for group in original["groups"]:
        for rule in group["rules"]:
            rule["annotations"]["runbook_url"] = f"{base}/{rule['annotations']['runbook_url']}"
    found = with_all_enabled(metrics_prometheusRule_runbookBase=f"{base}/")
    assert select_kind(found, "PrometheusRule")[prefix("default")]["spec"] == original


def test_the_dashboards_are_those_of_the_folder_with_the_label_for_grafanas_sidecar():
    found = with_all_enabled(metrics_dashboards_annotations={"grafana_folder": "Talos"})
    boards = {name: m for name, m in select_kind(found, "ConfigMap").items() if "-dashboard-" in name}
    shown = {}
    for board in boards.values():
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert board["metadata"]["annotations"] == {"grafana_folder": "Talos"}
        ((file, content),) = board["data"].items()
        shown[file.removeprefix("talos-ccm-")] = json.loads(content)
    assert shown == {
        path.name: json.loads(path.read_text()) for path in Path(FOLDER / "dashboards").glob("*.json")
    }


def test_configured_labels_are_added():
    release = {"release": "kube-prometheus-stack"}
    found = with_all_enabled(metrics_podMonitor_labels=release, metrics_prometheusRule_labels=release)
    for kind in OURS:
        (each,) = select_kind(found, kind).values()
        assert release.items() <= each["metadata"]["labels"].items()
