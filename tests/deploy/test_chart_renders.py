"""The chart lints, renders reproducibly, validates its values, and the committed files are current."""

import json
import re
import tomllib
from typing import Any

import pytest
import yaml

from cli.config.chart_values import check_values_file
from libs.common.cloud_config.model import Finding
from libs.testbed.helm.chart import (
    CHART,
    PLACEHOLDER,
    ChartValues,
    HelmError,
    find_nats_workload,
    lint_chart,
    render_manifests,
    render_text,
    select_service_deployments,
)
from libs.testbed.helm.renders import (
    MANIFESTS,
    PAGE,
    RENDERED_FILES,
    parse_documented_values,
    render_file,
    render_values_doc,
)
from tests.architecture.sources import ROOT
from tests.deploy.profiles import CLOUDS, CLUSTER_WIDE, EXPOSED, PROFILES, PUSHED, prefix
from tests.deploy.profiles import rendered as objects_of

CLOUD = CLOUDS[0]
CHART_FILE = yaml.safe_load((CHART / "Chart.yaml").read_text())
APP_VERSION = CHART_FILE["appVersion"]
STALE = "run `make manifests`, check the difference, and commit it"


def find_mistakes(text: str) -> tuple[Finding, ...]:
    """What `talos-ccm config check` finds in a file of values."""
    [report] = check_values_file(text.encode(), "f")
    return report.mistakes


@pytest.mark.parametrize("profile", ["default", "all-in-one", "elsewhere"])
def test_the_chart_lints_strictly(profile: str):
    """helm checks the values of every profile against the schema whenever it renders one."""
    assert "0 chart(s) failed" in lint_chart(PROFILES[profile])


@pytest.mark.parametrize("name", RENDERED_FILES)
def test_a_committed_manifest_is_what_the_chart_renders(name: str):
    assert (MANIFESTS / name).read_text() == render_file(name), STALE


def test_every_committed_manifest_is_rendered():
    assert {path.name for path in MANIFESTS.glob("*.yml")} == set(RENDERED_FILES)


def test_the_page_on_values_is_current():
    assert PAGE.read_text() == render_values_doc(), STALE


def undescribed(values: dict, described_ones: set[tuple[str, ...]], path: tuple[str, ...] = ()) -> list[str]:
    """Values without a description, and without a described parent."""
    missing = []
    for key, value in values.items():
        here = (*path, key)
        if here in described_ones:
            continue
        if isinstance(value, dict) and value:
            missing += undescribed(value, described_ones, here)
        else:
            missing.append(".".join(here))
    return missing


def test_every_value_has_a_description():
    text = (CHART / "values.yaml").read_text()
    assert undescribed(yaml.safe_load(text), {value.path for value in parse_documented_values(text)}) == []


@pytest.mark.parametrize("profile", PROFILES)
def test_every_object_has_its_namespace_and_the_name_of_the_release(profile: str):
    for manifest in objects_of(profile):
        kind, meta = manifest["kind"], manifest["metadata"]
        assert ("namespace" in meta) == (kind not in CLUSTER_WIDE), f"{kind} {meta['name']}"
        begins = ("ours", prefix(profile)) if profile == "elsewhere" else prefix(profile)
        assert meta["name"].startswith(begins), f"{kind} {meta['name']}"
        assert len(meta["name"]) <= 63


def test_a_release_with_a_long_name_has_valid_names():
    found = render_manifests(ChartValues(release="r" * 53, overrides={"nats.replicas": 3}))
    for manifest in found:
        # Pods of a StatefulSet have a label with its name, a hyphen and a hash of ten characters.
        most = 52 if manifest["kind"] == "StatefulSet" else 63
        assert len(manifest["metadata"]["name"]) <= most, manifest["metadata"]["name"]


def schema() -> dict[str, object]:
    loaded: dict[str, object] = json.loads((CHART / "values.schema.json").read_text())
    return loaded


def keys_of(schema_part: dict, values: dict, path: str = "") -> list[str]:
    """Values that the schema does not contain."""
    known = schema_part.get("properties", {})
    missing = []
    for key, value in values.items():
        if key not in known:
            missing.append(f"{path}{key}")
        elif isinstance(value, dict) and "properties" in known[key]:
            missing += keys_of(known[key], value, f"{path}{key}.")
    return missing


def test_the_schema_contains_every_value_and_every_value_of_the_schema_has_a_default():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert keys_of(schema(), values) == []
    assert set(schema()["properties"]) == set(values)  # type: ignore[call-overload]


def accounts_with(
    key: str, *parts: dict[str, Any], selected: str = "*", provider: str = "hcloud"
) -> dict[str, Any]:
    """Accounts a, b, ... with this part."""
    named = zip("abc", parts, strict=False)
    accounts = [
        {"provider": provider, "account": name, "secretRef": {"name": name}, key: part}
        for name, part in named
    ]
    return {"enabledControllers": ["cloud-node", selected], "clouds": accounts}


@pytest.mark.parametrize(
    ("overrides", "about"),
    [
        ({"nats.replica": 3}, "replica"),
        ({"daemonSet.enable": True}, "/daemonSet': additional properties 'enable' not allowed"),
        ({"daemonset.enabled": True}, "invalid propertyName 'daemonset'"),
        ({"enableControllers": []}, "invalid propertyName 'enableControllers'"),
        ({"transfomations": []}, "invalid propertyName 'transfomations'"),
        ({"networkPolicy.enable": False}, "additional properties 'enable' not allowed"),
        ({"image.repo": "registry.example.com/ours"}, "additional properties 'repo' not allowed"),
        ({"resources.limit": {"memory": "1Gi"}}, "additional properties 'limit' not allowed"),
        ({"updateStrategy.rollingupdate": {}}, "additional properties 'rollingupdate' not allowed"),
        ({"serviceAccount.named": "x"}, "additional properties 'named' not allowed"),
        ({"services.csr.podLabel": {}}, "additional properties 'podLabel' not allowed"),
        ({"podLabels": {"app.kubernetes.io/name": "x"}}, "invalid propertyName 'app.kubernetes.io/name'"),
        (
            {"metrics.podMonitor.enabled": True, "daemonSet.enabled": True},
            r"Set daemonSet.bindAddress to \$\(NODE_IP\)",
        ),
        (
            {"networkPolicy.egress.enabled": True, "otlpEndpoint": "http://traces.example.net:4318"},
            "blocks otlpEndpoint and nats.external.url",
        ),
        ({"nats.replicas": 2}, "replicas"),
        ({"services.metadata.replicas": 2}, "replicas"),
        ({"services.labeller": {}}, "labeller"),
        ({"config.transformation": []}, "transformation"),
        ({"enabledControllers": ["cloud-nodes"]}, "enabledControllers"),
        ({"enabledControllers": ["route"]}, "leaves nothing to run"),
        ({"talos.enabled": False}, "labeler cannot work without the Talos API"),
        (
            {"talos.enabled": False, "enabledControllers": ["node-csr-approval", "node-ipam-controller"]},
            "ipam cannot work without the Talos API",
        ),
        (
            {"extraArgs": ["--allocate-node-cidrs"], "services.metadata.extraArgs": ["--without-talos"]},
            "ipam cannot work without the Talos API",
        ),
        (
            {"talos.enabled": False, "enabledControllers": ["node-csr-approval"]},
            "no service queries a control plane for the Service networks: add the --service-cluster-ip-range",
        ),
        (
            {"services.metadata.extraArgs": ["--without-talos"], "enabledControllers": ["node-csr-approval"]},
            "add the --service-cluster-ip-range",
        ),
        (
            {
                "talos.enabled": False,
                "enabledControllers": ["node-csr-approval"],
                "daemonSet.enabled": True,
                "extraArgs": ["--service-cluster-ip-range="],
            },
            "add the --service-cluster-ip-range",
        ),
        ({"nats.enabled": False}, "nats.external.url"),
        ({"useDaemonSet": True}, "daemonSet.enabled"),
        ({"clouds": [CLOUD | {"account": "Prod"}]}, "/clouds/0/account': 'Prod' does not match pattern"),
        ({"clouds": [CLOUD | {"account": "a" * 33}]}, "/clouds/0/account': 'a+' does not match pattern"),
        ({"clouds": [CLOUD | {"account": "prod-"}]}, "/clouds/0/account': 'prod-' does not match pattern"),
        ({"clouds": [CLOUD | {"provider": "aws"}]}, "/clouds/0/provider': value must be"),
        ({"clouds": [CLOUD | {"anchor": "4711"}]}, "/clouds/0/anchor': '4711' does not match pattern"),
        ({"clouds": [CLOUD | {"token": "x"}]}, "/clouds/0': additional properties 'token' not allowed"),
        ({"clouds": [CLOUD | {"secretRef": "x"}]}, "/clouds/0/secretRef': got string, want object"),
        ({"clouds": [{"provider": "hcloud", "account": "a"}]}, "/clouds/0': missing property 'secretRef'"),
        ({"clouds": [CLOUD, CLOUDS[1] | {"account": "prod"}]}, "the account prod is there twice"),
        ({"clouds": [CLOUD, CLOUD | {"account": "b"}]}, "two accounts have the credential of Secret hcloud"),
        ({"clouds": [CLOUD | {"metadata": "on"}]}, "/clouds/0/metadata': got string, want boolean"),
        ({"clouds": [CLOUD | {"network": "a,b"}]}, "/clouds/0/network': 'a,b' does not match pattern"),
        ({"clouds": [CLOUD | {"metadata": False}]}, "the network of account prod has no effect"),
        ({"clouds": [CLOUD | {"provider": "thalassa"}]}, "prod supplies no metadata: thalassa is not hcloud"),
        (accounts_with("loadBalancers", {"class": "a"}), "add service-lb-controller to enabledControllers"),
        (accounts_with("loadBalancers", {"class": "a"}, {"class": "a"}, selected="service"), "two accounts"),
        (accounts_with("loadBalancers", {"default": True}, {"default": True}, selected="service"), "two acc"),
        (accounts_with("loadBalancers", {"name": "a"}, selected="service"), "loadBalancers"),
        (accounts_with("routes", {"network": "1"}), "add node-route-controller to enabledControllers"),
        (
            accounts_with("routes", {"network": 10867345}, selected="route"),
            "network': got number, want string",
        ),
        (
            accounts_with("routes", {"network": "1"}, selected="route", provider="thalassa"),
            "a has no routes: thalassa is not hcloud or openstack",
        ),
        ({"metrics.podMonitor.enable": True}, "metrics/podMonitor': additional properties 'enable'"),
        ({"metrics.serviceMonitor.enabled": True}, "metrics': additional properties 'serviceMonitor'"),
        ({"metrics.prometheusRule.runbookBase": "docs"}, "runbookBase': 'docs' does not match pattern"),
        ({"metrics.podMonitor.interval": "often"}, "interval': 'often' does not match pattern"),
        ({"console.enabled": True, "console.exposed.enabled": True}, "set tlsSecretName"),
        (EXPOSED | {"console.exposed.hosts": []}, "hosts to the names"),
        (EXPOSED | {"console.exposed.hosts": ["https://console.example"]}, "pattern"),
        (EXPOSED | {"daemonSet.enabled": True}, "use kubectl port-forward"),
    ],
    ids=str,
)
def test_a_mistake_in_the_values_is_rejected_by_name(overrides, about: str):
    with pytest.raises(HelmError, match=about):
        render_text(ChartValues(overrides=overrides))
    assert find_mistakes(yaml.safe_dump(nested(overrides))), "config check finds it, too"


def nested(overrides: dict[str, Any]) -> dict[str, Any]:
    """The content of a values file for dotted keys."""
    values: dict[str, Any] = {}
    for path, value in overrides.items():
        *above, last = path.split(".")
        holder = values
        for key in above:
            holder = holder.setdefault(key, {})
        holder[last] = value
    return values


# Without `image`, check warns: --set can name the repository.
@pytest.mark.parametrize("key", sorted(set(schema()["properties"]) - {"image"}))  # type: ignore[call-overload]
def test_config_check_rejects_a_key_without_a_value_as_the_chart_does(key: str):
    mistakes = find_mistakes(f"{key}:\n")
    try:
        render_text(ChartValues(overrides={key: None}))
    except HelmError:
        assert mistakes
    else:
        assert not mistakes


def test_an_old_value_equal_to_the_default_is_ignored():
    assert render_text(ChartValues(overrides={"useDaemonSet": False})) == render_text(ChartValues())


def test_the_chart_has_the_version_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (CHART_FILE["version"], APP_VERSION) == (project, f"v{project}")


def images_of_services(manifests: list[dict[str, Any]]) -> set[str]:
    return {
        container["image"]
        for deployment in select_service_deployments(manifests).values()
        for container in deployment["spec"]["template"]["spec"]["containers"]
    }


@pytest.mark.parametrize(
    ("values", "repository"),
    [
        (ChartValues(overrides={"image.tag": None}), PLACEHOLDER),
        (PROFILES["reference"], PUSHED["image.repository"]),
    ],
    ids=["no tag", "reference"],
)
def test_the_image_has_the_configured_repository_and_the_charts_version(values: ChartValues, repository: str):
    assert images_of_services(render_manifests(values)) == {f"{repository}:{APP_VERSION}"}


@pytest.mark.parametrize(
    ("overrides", "about"),
    [
        ({}, "ghcr.io/siderolabs/talos-cloud-controller-manager is the image of the reference"),
        (
            {"image.repository": "mirror.example.com/siderolabs/talos-cloud-controller-manager"},
            "is the image of the reference controller",
        ),
        (
            {"image.repository": "ghcr.io/siderolabs/talos-cloud-controller-manager:v1.9.0"},
            "is the image of the reference controller",
        ),
    ],
    ids=["repository", "mirror", "repository with a tag"],
)
def test_old_values_that_name_the_references_image_fail_the_install(overrides, about: str):
    old = CHART / "ci" / "reference-values.yaml"
    here = {"image.repository": "ghcr.io/siderolabs/talos-cloud-controller-manager"} | overrides
    for profile in ({}, {"daemonSet.enabled": True}):
        with pytest.raises(HelmError, match=about):
            render_text(ChartValues(files=(old,), overrides=overrides | profile, repository=""))
        assert find_mistakes(yaml.safe_dump(nested(here | profile)))


@pytest.mark.parametrize(
    "overrides",
    [
        {"image.tag": "edge"},
        {"image.tag": "v0.1.7"},
        {"image.tag": "v1.12.0", "image.repository": "registry.example.com/ours"},
        {"image.tag": "v1.12.0", "image.digest": "sha256:" + "0" * 64},
        {
            "image.repository": "mirror.example.com/siderolabs/talos-cloud-controller-manager",
            "image.digest": "sha256:" + "0" * 64,
        },
    ],
    ids=str,
)
def test_a_tag_that_may_be_ours_is_accepted(overrides):
    assert render_manifests(ChartValues(overrides=overrides))
    assert not find_mistakes(yaml.safe_dump(nested(overrides)))


@pytest.mark.parametrize("image", [{}, {"image": None}, {"image.repository": None}, {"image.tag": "v1.12.0"}])
@pytest.mark.parametrize("in_one", [False, True], ids=["deployments", "daemonset"])
def test_an_image_without_a_repository_fails_the_install_with_the_fix(image: dict[str, Any], in_one: bool):
    about = "image.repository is not set, .*: build the image, push it to your registry, and set"
    with pytest.raises(HelmError, match=about):
        render_text(ChartValues(overrides=image | {"daemonSet.enabled": in_one}, repository=""))


@pytest.mark.parametrize("name", RENDERED_FILES)
def test_a_manifest_names_a_placeholder_that_never_resolves_and_explains_it_first(name: str):
    head, _, objects = (MANIFESTS / name).read_text().partition("\n---\n")
    assert f"replace\n# {PLACEHOLDER}\n# with the image that you have built and pushed" in head
    assert PLACEHOLDER.partition("/")[0].endswith(".invalid"), "reserved by RFC 6761"
    images = {each for each in re.findall(r'image: "([^"]+)"', objects) if not each.startswith("nats:")}
    assert {each.rpartition(":")[0] for each in images} == {PLACEHOLDER}


@pytest.mark.parametrize(
    ("overrides", "image"),
    [
        ({}, r"nats:2\.14\.2-alpine@sha256:[0-9a-f]{64}"),
        ({"nats.image.tag": "2.15.1"}, r"nats:2\.15\.1"),
        ({"nats.image.repository": "registry.example.com/nats"}, r"registry\.example\.com/nats:.*@sha256:.*"),
    ],
    ids=str,
)
def test_nats_runs_from_a_digest_unless_the_values_name_another_tag(overrides: dict[str, Any], image: str):
    found = get_nats_image(overrides)
    assert re.fullmatch(image, found)


def test_compose_runs_the_nats_of_the_chart():
    compose = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())["services"]
    assert f":-docker.io/library/{get_nats_image({})}" in compose["nats"]["image"]


def get_nats_image(overrides: dict[str, Any]) -> str:
    workload = find_nats_workload(render_manifests(ChartValues(overrides=overrides)))
    assert workload is not None
    containers = {each["name"]: each for each in workload["spec"]["template"]["spec"]["containers"]}
    return str(containers["nats"]["image"])


def test_a_digest_overrides_the_tag():
    digest = "sha256:" + "0" * 64
    overrides = {"image.digest": digest, "image.tag": "edge", "nats.image.digest": digest}
    assert images_of_services(render_manifests(ChartValues(overrides=overrides))) == {
        f"{PLACEHOLDER}@{digest}"
    }
    assert get_nats_image(overrides) == f"nats@{digest}"


@pytest.mark.parametrize(
    "command", re.findall(r"helm upgrade [^`]+", (ROOT / "docs" / "migrate.md").read_text())
)
def test_a_migration_as_documented_names_an_image_that_exists(command: str):
    flags = dict(re.findall(r"--set (\S+?)=(\S+)", command))
    old = {"image.repository": "ghcr.io/siderolabs/talos-cloud-controller-manager", "image.tag": "v1.9.0"}
    images = images_of_services(render_manifests(ChartValues(overrides=old | flags)))
    assert images == {f"{flags['image.repository']}:{APP_VERSION}"}
