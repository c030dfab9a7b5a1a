"""Templates give the results of Go's text/template, recorded by `make go-templates`."""

import json
from pathlib import Path
from typing import Any

import pytest

from libs.gotemplate import TemplateError, parse, render
from libs.gotemplate.runes import encoded
from libs.gotemplate.values import Record, Value
from tests.tables import naming

WRITTEN = json.loads((Path(__file__).parent / "go_templates" / "cases.json").read_text())
# Parts of Go's reasons for which ours have other words: RE2's, Python's of base64, or plainer ones.
OWN_WORDS = ("error parsing regexp", "illegal base64 data", "non-comparable", "zero Value", "has arguments")


def go_value(typed: dict[str, Any]) -> Value:
    """A value of the generator."""
    kind, value = typed["type"], typed["value"]
    if kind.startswith("map["):
        return {encoded(k): encoded(v) for k, v in (value or {}).items()}
    if kind.startswith("main."):
        return Record(kind, {field["field"]: go_value(field) for field in value})
    plain: Value = encoded(value) if kind == "string" else value
    return plain


DATA = {typed["name"]: go_value(typed) for typed in WRITTEN["data"]}


def test_a_template_gives_what_go_gives():
    for case in WRITTEN["cases"]:
        with naming(case):
            data = DATA[case["data"]]
            assert isinstance(data, Record)
            error = case.get("error")
            if error is None:
                assert render(parse(case["template"]), data) == case["output"]
                continue
            with pytest.raises(TemplateError) as caught:
                render(parse(case["template"]), data)
            assert (caught.value.kind, caught.value.line) == (error["kind"], error["line"])
            reason = error.get("reason", "")
            if reason and not any(words in reason for words in OWN_WORDS):
                assert caught.value.reason == reason


def test_the_table_covers_every_function_and_every_kind_of_outcome():
    from libs.gotemplate.functions import FUNCTIONS

    cases = WRITTEN["cases"]
    outcomes = [case["error"]["kind"] if "error" in case else "output" for case in cases]
    assert len(cases) >= 1200
    assert {kind: outcomes.count(kind) >= 100 for kind in outcomes} == dict.fromkeys(set(outcomes), True)
    assert set(outcomes) == {"output", "parse", "exec"}
    worked = " ".join(case["template"] for case in cases if "error" not in case)
    assert not [name for name in FUNCTIONS if f"{name} " not in worked]
