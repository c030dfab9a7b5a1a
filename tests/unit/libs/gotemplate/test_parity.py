"""Templates give the results of Go's text/template, recorded by `make go-templates`."""

import json
from pathlib import Path
from typing import Any

import pytest

from libs.gotemplate import TemplateError, parse, render
from libs.gotemplate.runes import encoded
from libs.gotemplate.values import GoList, GoMap, Record, Value

WRITTEN = json.loads((Path(__file__).parent / "go_templates" / "cases.json").read_text())


def go_value(typed: dict[str, Any]) -> Value:
    """A value of the generator, with its Go type."""
    kind, value = typed["type"], typed["value"]
    if kind.startswith("map["):
        entries: dict[bytes, Value] = {encoded(k): encoded(v) for k, v in (value or {}).items()}
        return GoMap("string", entries, nil=value is None)
    if kind.startswith("[]"):
        return GoList("string", tuple(map(encoded, value or ())), nil=value is None)
    if kind.startswith("main."):
        return Record(kind, {field["field"]: go_value(field) for field in value})
    if kind == "string":
        return encoded(value)
    plain: Value = (
        float(value) if kind == "float64" else value
    )  # JSON keeps bool and int apart, not 2 and 2.0
    return plain


DATA = {typed["name"]: go_value(typed) for typed in WRITTEN["data"]}


def named(case: dict[str, Any]) -> str:
    return f"{case['data']}: {case['template'][:60]}"


def ours(case: dict[str, Any]) -> tuple[str | None, dict[str, Any] | None]:
    """Return output and error; Go's parse errors have no column."""
    data = DATA[case["data"]]
    assert isinstance(data, Record)
    try:
        return render(parse(case["template"]), data), None
    except TemplateError as error:
        said = {"kind": error.kind, "line": error.line, "reason": error.reason}
        return None, said | {"column": error.column, "at": error.context} if error.kind == "exec" else said


def go(case: dict[str, Any]) -> tuple[str | None, dict[str, Any] | None]:
    error = case.get("error")
    if error is not None and error["kind"] == "parse":
        error = {key: error[key] for key in ("kind", "line", "reason")}
    return case["output"], error


@pytest.mark.parametrize("case", WRITTEN["cases"], ids=named)
def test_a_template_gives_what_go_gives(case):
    assert ours(case) == go(case)


def test_the_table_covers_every_function_and_every_kind_of_outcome():
    from libs.gotemplate.functions import FUNCTIONS

    cases = WRITTEN["cases"]
    outcomes = [case["error"]["kind"] if "error" in case else "output" for case in cases]
    assert len(cases) >= 1500
    assert {kind: outcomes.count(kind) >= 100 for kind in outcomes} == dict.fromkeys(set(outcomes), True)
    assert set(outcomes) == {"output", "parse", "exec"}
    worked = " ".join(case["template"] for case in cases if "error" not in case)
    assert [name for name in FUNCTIONS if f"{name} " not in worked] == ["call"]  # nothing can be called
