"""Pods: security context, probes, scheduling on nodes that are not initialized."""

from typing import Any

import pytest

from libs.testbed.helm.chart import (
    ChartValues,
    Manifest,
    find_nats_workload,
    render_manifests,
    select_kind,
    select_service_deployments,
)
from tests.deploy.profiles import DEPLOYED, PROFILES, WITH_NATS, containers, prefix, rendered, workloads

IN_ONE_PROCESS = [name for name in PROFILES if name not in DEPLOYED]
UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"
NOT_READY = "node.kubernetes.io/not-ready"


def pod(workload: Manifest) -> dict[str, Any]:
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("profile", PROFILES)
def test_every_container_runs_as_our_user_and_writes_only_to_its_volumes(profile: str):
    """The API server judges the rest of the level restricted in test_chart_valid."""
    for workload in workloads(profile):
        of_pod = pod(workload)["securityContext"]
        assert (of_pod["runAsUser"], of_pod["fsGroup"]) == (10258, 10258)
        for container in containers(workload):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]
            assert "requests" in container["resources"]


@pytest.mark.parametrize("profile", PROFILES)
def test_only_the_pods_group_can_read_secrets(profile: str):
    for workload in workloads(profile):
        for volume in pod(workload)["volumes"]:
            for kind in ("secret", "configMap", "projected"):
                if kind in volume:
                    assert volume[kind]["defaultMode"] == 0o440


@pytest.mark.parametrize("profile", PROFILES)
def test_pods_are_critical_and_tolerate_uninitialized_nodes(profile: str):
    for workload in workloads(profile):
        spec = pod(workload)
        assert spec["priorityClassName"] == "system-cluster-critical"
        assert spec["enableServiceLinks"] is False
        assert spec["nodeSelector"] == {"node-role.kubernetes.io/control-plane": ""}
        tolerated = {(t.get("key"), t["effect"]) for t in spec["tolerations"]}
        assert {
            (UNINITIALIZED, "NoSchedule"),
            ("node-role.kubernetes.io/control-plane", "NoSchedule"),
        } <= tolerated


@pytest.mark.parametrize("profile", DEPLOYED)
def test_pods_leave_a_lost_node_within_a_minute(profile: str):
    for workload in workloads(profile):
        seconds = {
            t["key"]: t["tolerationSeconds"]
            for t in pod(workload)["tolerations"]
            if t["effect"] == "NoExecute"
        }
        assert seconds == {NOT_READY: 60, "node.kubernetes.io/unreachable": 60}


@pytest.mark.parametrize("profile", PROFILES)
def test_services_are_probed_where_they_serve(profile: str):
    for workload in workloads(profile):
        for container in containers(workload):
            if "ports" not in container:
                assert container["name"] == "bootstrap"
                continue
            named = {port["name"] for port in container["ports"]}
            assert container["livenessProbe"]["httpGet"]["port"] in named
            startup = container["startupProbe"]
            assert startup["httpGet"]["port"] in named
            assert startup["periodSeconds"] * startup["failureThreshold"] >= 300, "a busy node starts slowly"
            assert "initialDelaySeconds" not in container["livenessProbe"]
            if container["name"] == "keeper":
                assert "readinessProbe" not in container, "it would take the server from its clients"
            else:
                assert container["readinessProbe"]["httpGet"]["port"] in named


@pytest.mark.parametrize("profile", IN_ONE_PROCESS)
def test_the_one_process_needs_nothing_but_the_api_server_of_its_node(profile: str):
    (workload,) = workloads(profile)
    spec = pod(workload)
    assert workload["kind"] == "DaemonSet"
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "Default")
    assert (NOT_READY, "NoSchedule") in {(t.get("key"), t["effect"]) for t in spec["tolerations"]}
    environment = {each["name"]: each for each in spec["containers"][0]["env"]}
    own_address = {"fieldRef": {"fieldPath": "status.podIP"}}
    assert environment["KUBERNETES_SERVICE_HOST"]["valueFrom"] == own_address
    assert environment["TALOS_ENDPOINTS"]["valueFrom"] == own_address
    assert environment["KUBERNETES_SERVICE_PORT"]["value"] == "6443"
    # The reference's selector: helm can upgrade its DaemonSet of the same name.
    labels = {"app.kubernetes.io/name": "talos-cloud-controller-manager"}
    assert workload["spec"]["selector"]["matchLabels"] == labels | {
        "app.kubernetes.io/instance": prefix(profile)
    }


@pytest.mark.parametrize(
    ("overrides", "address", "host"),
    [
        ({}, "127.0.0.1", "127.0.0.1"),
        ({"daemonSet.bindAddress": "::1"}, "::1", "::1"),
        ({"daemonSet.bindAddress": "0.0.0.0"}, "0.0.0.0", "127.0.0.1"),
        ({"daemonSet.bindAddress": "$(NODE_IP)"}, "$(NODE_IP)", None),
        ({"daemonSet.bindAddress": "192.0.2.7"}, "192.0.2.7", "192.0.2.7"),
        ({"extraArgs": ["--bind-address=0.0.0.0"]}, "0.0.0.0", "127.0.0.1"),
        ({"extraArgs": ["--bind-address", "192.0.2.7"]}, None, "192.0.2.7"),
    ],
    ids=str,
)
def test_on_the_host_network_only_the_node_reaches_health_unless_an_address_is_set(
    overrides: dict[str, Any], address: str | None, host: str | None
):
    """Without `host`, the kubelet probes the address of the pod: that of its node."""
    found = render_manifests(ChartValues(overrides={"daemonSet.enabled": True} | overrides))
    (daemon_set,) = select_kind(found, "DaemonSet").values()
    (container,) = pod(daemon_set)["containers"]
    given = [each.partition("=")[2] for each in container["args"] if each.startswith("--bind-address=")]
    assert given == ([address] if address else []), "never twice"
    probes = [container[f"{each}Probe"]["httpGet"] for each in ("startup", "liveness", "readiness")]
    assert [probe.get("host") for probe in probes] == [host] * 3
    variables = {each["name"]: each for each in container["env"]}
    assert variables["NODE_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


@pytest.mark.parametrize("profile", DEPLOYED)
def test_on_the_pod_network_the_kubelet_and_prometheus_reach_every_process(profile: str):
    for workload in workloads(profile):
        for container in containers(workload):
            assert not [each for each in container.get("args", ()) if "bind-address" in each]
            assert not [v for k, v in container.items() if k.endswith("Probe") and "host" in v["httpGet"]]


@pytest.mark.parametrize("profile", DEPLOYED)
def test_pods_that_query_machines_have_no_kubernetes_token(profile: str):
    without = {
        workload["metadata"]["name"].removeprefix(f"{prefix(profile)}-")
        for workload in workloads(profile)
        if pod(workload).get("automountServiceAccountToken") is False
    }
    accounts = {name for name in without if name.startswith("cloud-")}
    assert without - accounts == {"metadata", *(["nats"] if profile in WITH_NATS else [])}


@pytest.mark.parametrize("profile", WITH_NATS)
def test_the_nats_server_has_no_token_and_cannot_write_its_configuration(profile: str):
    workload = find_nats_workload(rendered(profile))
    assert workload is not None
    token = "/var/run/secrets/kubernetes.io/serviceaccount"
    with_token = {
        c["name"] for c in containers(workload) if token in [m["mountPath"] for m in c["volumeMounts"]]
    }
    assert with_token == {"bootstrap", "keeper"}
    (server,) = [c for c in containers(workload) if c["name"] == "nats"]
    modes = {mount["mountPath"]: mount.get("readOnly", False) for mount in server["volumeMounts"]}
    assert modes["/etc/nats-generated"] is True


def test_the_ha_profile_survives_the_loss_of_a_node():
    found = rendered("ha")
    head = f"{prefix('ha')}-"
    budgets = {name.removeprefix(head) for name in select_kind(found, "PodDisruptionBudget")}
    assert budgets == {"watcher", "labeler", "csr", "nats"}
    nats = select_kind(found, "StatefulSet")[f"{head}nats"]
    apart = pod(nats)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert nats["spec"]["replicas"] == 3
    assert apart[0]["topologyKey"] == "kubernetes.io/hostname"
    for name, deployment in select_service_deployments(found).items():
        assert ("affinity" in pod(deployment)) == (name != f"{head}metadata")


@pytest.mark.parametrize("profile", PROFILES)
def test_every_selector_matches_exactly_its_pods(profile: str):
    by_labels = {
        w["metadata"]["name"]: w["spec"]["template"]["metadata"]["labels"] for w in workloads(profile)
    }

    def selected(selector: dict[str, str]) -> set[str]:
        return {name for name, labels in by_labels.items() if selector.items() <= labels.items()}

    for workload in workloads(profile):
        name = workload["metadata"]["name"]
        assert selected(workload["spec"]["selector"]["matchLabels"]) == {name}
    for name, service in select_kind(rendered(profile), "Service").items():
        meant = set(by_labels) if name == prefix(profile) else {f"{prefix(profile)}-nats"}
        assert selected(service["spec"]["selector"]) == meant
    for name, budget in select_kind(rendered(profile), "PodDisruptionBudget").items():
        assert selected(budget["spec"]["selector"]["matchLabels"]) == {name}
