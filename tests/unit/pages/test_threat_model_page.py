"""docs/threat-model.md has a row for each attempt that tests carry out, and no other."""

import ast
from pathlib import Path

import pytest

from libs.common.contract.services import READER_USER, SERVICES
from tests.integration.hostile.threat_tables import COMMAND, PAGE, TABLES, render_threat_model
from tests.tables import naming

ROOT = Path(__file__).parents[3]
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
    parts = [spec.service for spec in SERVICES]
    for part in (*parts, "bootstrap", READER_USER, "NATS", "talos-ccm"):
        assert f"\n| `{part}` |" in PAGE.read_text(), part
