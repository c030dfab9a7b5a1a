"""The live console that the chart exposes: its flags, rights, Service and policies."""

from pathlib import Path
from typing import Any

import pytest

from libs.common.contract.services import CONSOLE, CONSOLE_PORT
from libs.testbed.helm.chart import ChartValues, Manifest, render_manifests, select_kind
from services.console.settings import ConsoleSettings
from tests.deploy.profiles import EXPOSED, containers, of_deployments, prefix, reading_of
from tests.deploy.test_chart_rights import of_role, of_wiring

NAME = f"{prefix('default')}-console"
PROMETHEUS = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
OFFICE = {"ipBlock": {"cidr": "192.0.2.0/24"}}


def render(**more: Any) -> list[Manifest]:
    return render_manifests(ChartValues(overrides=EXPOSED | more))


def test_an_exposed_console_has_its_certificate_its_names_and_a_token_of_kubernetes(tmp_path: Path):
    found = render()
    _, reading = reading_of(of_deployments(found)["console"], found, tmp_path)
    settings = reading.get(ConsoleSettings)
    assert (settings.exposed, settings.address) == (True, "0.0.0.0")
    assert settings.hosts == ("console.example", "192.0.2.9")
    deployment = select_kind(found, "Deployment")[NAME]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = containers(deployment)
    (volume,) = [each for each in pod["volumes"] if each["name"] == "console-tls"]
    assert volume["secret"]["secretName"] == "console-tls"
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "console-tls"]
    files = {settings.tls_cert_file, settings.tls_key_file}
    assert files == {Path(mount["mountPath"]) / name for name in ("tls.crt", "tls.key")}
    assert pod.get("automountServiceAccountToken") is not False


def test_its_account_may_only_create_the_two_reviews():
    found = render()
    role = select_kind(found, "ClusterRole")[NAME]
    assert of_role(role, "") == of_wiring(CONSOLE.policy_rules)
    (binding,) = [
        each for each in found if each["kind"].endswith("RoleBinding") and each["roleRef"]["name"] == NAME
    ]
    assert [subject["name"] for subject in binding["subjects"]] == [NAME]
    assert NAME not in select_kind(found, "Role")


def test_its_service_leads_to_the_port_of_its_pod():
    found = render(**{"console.exposed.service.type": "NodePort", "console.exposed.service.port": 8443})
    service = select_kind(found, "Service")[NAME]["spec"]
    assert service["type"] == "NodePort"
    (port,) = service["ports"]
    assert (port["port"], port["targetPort"]) == (8443, "console")
    deployment = select_kind(found, "Deployment")[NAME]
    (container,) = containers(deployment)
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports["console"] == CONSOLE_PORT
    assert service["publishNotReadyAddresses"], "without NATS it shows that its data may be outdated"
    assert service["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("metrics_from", "console_from"),
    [([PROMETHEUS], []), ([PROMETHEUS], [OFFICE]), ([], [OFFICE]), ([], [])],
)
def test_policies_let_clients_of_the_console_in_and_keep_metrics_as_they_were(
    metrics_from: list[Any], console_from: list[Any]
):
    found = render(**{"networkPolicy.metricsFrom": metrics_from, "networkPolicy.consoleFrom": console_from})
    policy = select_kind(found, "NetworkPolicy").get(NAME)
    if not metrics_from and not console_from:
        assert policy is None, "no policy selects the pod, so all is allowed"
        return
    assert policy is not None
    rules = {rule["ports"][0]["port"]: rule.get("from", []) for rule in policy["spec"]["ingress"]}
    assert rules == {"console": console_from} | ({} if metrics_from else {"metrics": []})


def test_with_an_egress_policy_it_reaches_the_api_server_only_if_it_is_exposed():
    def count_rules(**overrides: Any) -> int:
        found = render(**{"networkPolicy.egress.enabled": True}, **overrides)
        return len(select_kind(found, "NetworkPolicy")[f"{NAME}-egress"]["spec"]["egress"])

    assert count_rules() == count_rules(**{"console.exposed.enabled": False}) + 1
