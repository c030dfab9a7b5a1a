"""Templates: mistakes, refusals, and the results of Go's text/template, recorded by `make go-templates`."""

import json
from pathlib import Path
from typing import Any

import pytest

from libs.gotemplate import TemplateError, parse, record, render
from libs.gotemplate.runes import encoded
from libs.gotemplate.values import Record, Value
from tests.tables import naming

MACHINE = record(
    "Machine",
    {
        "Platform": "metal",
        "Hostname": "web-1",
        "Zone": "",
        "Spot": False,
        "Cores": 8,
        "Tags": {"team": "a&b"},
    },
)


def refused(source: str) -> TemplateError:
    with pytest.raises(TemplateError) as caught:
        render(parse(source), MACHINE)
    return caught.value


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ .Hostname | nope }}", '1:15: function "nope" not defined'),
        ("{{ if .Hostname }}", "1:18: unexpected EOF"),
        ("a\nb {{ $x }}", '2:5: undefined variable "$x"'),
        ("{{ $x = 1 }}", '1:3: undefined variable "$x"'),
    ],
)
def test_a_mistake_of_syntax_or_of_a_name_is_told_when_the_configuration_is_read(source: str, said: str):
    with pytest.raises(TemplateError) as caught:
        parse(source)
    assert (caught.value.kind, str(caught.value)) == ("parse", said)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ html .Zone }}", "function html is not supported: values are plain text and need no escaping"),
        ("{{ .Zone | js }}", "function js is not supported: values are plain text and need no escaping"),
        ("{{ urlquery .Zone }}", "function urlquery is not supported: use replace or regexReplaceAll"),
        ("{{ call .Zone }}", "function call is not supported: no value of a machine is a function"),
        ("{{ 1i }}", "complex constants such as 1i are not supported: write a decimal number"),
        ("{{ 0x1p4 }}", "hexadecimal floats such as 0x1p4 are not supported: write a decimal number"),
        ("{{ 007 }}", "octal constants such as 007 are not supported: write a decimal number"),
        ("{{ 'a' }}", 'constants in single quotes are not supported: write "text" in double quotes'),
        ('{{ printf "%b" .Cores }}', "printf does not support %b: use %v, %s, %q, %d, %x, %X, %f or %t"),
        ('{{ printf "%U" 65 }}', "printf does not support %U: use %v, %s, %q, %d, %x, %X, %f or %t"),
        ('{{ printf "%z" 65 }}', "printf does not support %z: use %v, %s, %q, %d, %x, %X, %f or %t"),
        ('{{ printf "%#v" .Zone }}', "printf does not support %#v: use %v without '#'"),
        ('{{ printf "%.2v" .Zone }}', "printf does not support %.v: use %v without '.'"),
        ('{{ printf "%*d" 5 .Cores }}', "printf does not support %*: write the width as a number"),
        ('{{ printf "%[1]s" .Zone }}', "printf does not support %[: give the arguments in the order of the"),
        ('{{ printf "100%" }}', "printf does not support %: write %% for a percent sign"),
        # known only when the types of the values are
        ('{{ printf "%q" .Cores }}', "error calling printf: printf does not support %q of int: use %d"),
        (
            '{{ printf "%x" 1.5 }}',
            "error calling printf: printf does not support %x of float64: use %f or %v",
        ),
        ('{{ "%U" | printf }}', "error calling printf: printf does not support %U: use %v"),
        ("{{ index .Hostname 0 }}", "error calling index: index of a string is not supported: use slice"),
        ("{{ eq .Tags .Tags }}", "error calling eq: non-comparable type map[string]string: use empty or len"),
    ],
)
def test_a_refusal_names_the_function_or_verb_and_what_to_use_instead(source: str, said: str):
    assert refused(source).reason.startswith(said)


def test_an_unknown_field_is_told_in_go_s_words_with_its_place():
    error = refused("zone-{{ .Zone }}\n{{ upper .Region }}")
    assert error.kind == "exec"
    assert str(error) == "2:9: at <.Region>: can't evaluate field Region in type Machine"


def test_a_wrong_number_of_arguments_is_told_where_go_tells_it():
    parse("{{ upper }}")
    assert str(refused("{{ upper }}")) == "1:3: at <upper>: wrong number of args for upper: want 1 got 0"


def test_a_long_part_of_a_template_is_cut_in_the_message_only():
    error = refused('{{ printf "%s" (b64dec "' + "!" * 500 + '") }}')
    assert len(str(error)) < 300
    assert "..." in str(error)
    assert len(error.context) > 500


def test_what_a_machine_says_does_not_make_an_error_longer_than_an_event():
    hostile = record("Machine", {"Serial": "[" * 1_000})
    with pytest.raises(TemplateError) as caught:
        render(parse("{{ regexFind .Serial .Serial }}"), hostile)
    assert len(str(caught.value)) < 600
    assert "missing ]: `[[[" in str(caught.value)


def test_values_of_every_kind_may_be_given():
    data = record("D", {"I": 3, "B": True, "S": "a", "M": {"k": "v"}, "E": {}})
    assert render(parse("{{.I}} {{.B}} {{.S}} {{.M}} {{.E}} {{.}}"), data) == (
        "3 true a map[k:v] map[] {3 true a map[k:v] map[]}"
    )
    with pytest.raises(ValueError, match="64-bit"):
        record("D", {"I": 2**63})


def test_a_variable_whose_declaration_was_not_evaluated_is_an_error():
    assert refused("{{ or 1 ($x := 2) }}{{ $x }}").reason == "undefined variable: $x"


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ("no action", set()),
        ("{{ .Zone | default .Region }}{{ $.Hostname }}", {"Zone", "Region", "Hostname"}),
        ("{{ .Tags.team }}{{ (.Tags).x }}{{ ($).Spot }}{{ (.).UUID }}", {"Tags", "Spot", "UUID"}),
        ("{{ if eq .A 1 }}{{ .B }}{{ else if .C }}{{ .D }}{{ else }}{{ .E }}{{ end }}", set("ABCDE")),
        ("{{ with .A }}{{ .B }}{{ $.C }}{{ else }}{{ .D }}{{ end }}", set("ACD")),
        ("{{ with . }}{{ .B }}{{ end }}{{ with $ }}{{ .C }}{{ end }}", set("BC")),
        ("{{ range $k, $v := .A }}{{ .B }}{{ $v.C }}{{ $.D }}{{ else }}{{ .E }}{{ end }}", set("ADE")),
        ('{{ define "t" }}{{ .B }}{{ $.C }}{{ end }}{{ template "t" . }}', set("BC")),
        ('{{ define "t" }}{{ .B }}{{ end }}{{ template "t" .A }}', set("A")),
        ('{{ define "t" }}{{ .B }}{{ template "t" . }}{{ end }}{{ template "t" $ }}', set("B")),
        ("{{ $x := .A }}{{ $x.B }}{{ printf `%s` (print .C) | default .D }}", set("ACD")),
    ],
)
def test_the_fields_that_a_template_reads_are_known_unrendered(source: str, fields: set[str]):
    assert parse(source).fields == fields


# ---- Go's results


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
