"""The interface of templates: when an error is raised, its text, and the fields that are read."""

import pytest

from libs.gotemplate import TemplateError, parse, record, render

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
        ("{{ 1i }}", "1:3: complex constants such as 1i are not supported"),
        ("{{ 1+2i }}", "1:3: complex constants such as 1+2i are not supported"),
    ],
)
def test_a_mistake_of_syntax_or_of_a_name_is_told_when_the_configuration_is_read(source: str, said: str):
    with pytest.raises(TemplateError) as caught:
        parse(source)
    assert (caught.value.kind, str(caught.value)) == ("parse", said)


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
    hostile = record("Machine", {"Tags": {"a": "<" * 60_000}})
    with pytest.raises(TemplateError) as caught:
        render(parse("{{ eq .Tags .Tags }}"), hostile)
    assert len(str(caught.value)) < 600
    assert "non-comparable type map[a:<<<" in str(caught.value)


def test_output_is_plain_text():
    source = "{{ .Tags.team }}+<{{ `\"'&` }}>"
    assert render(parse(source), MACHINE) == "a&b+<\"'&>"


def test_one_template_serves_many_machines():
    template = parse("{{ .Hostname | upper }}{{ if .Spot }}-spot{{ end }}")
    assert render(template, MACHINE) == "WEB-1"
    assert render(template, record("Machine", {"Hostname": "b", "Spot": True})) == "B-spot"


def test_values_of_every_kind_may_be_given():
    data = record("D", {"I": 3, "F": 2.5, "L": ["a", "b"], "E": [], "R": record("Inner", {"X": "y"})})
    assert render(parse("{{.I}} {{.F}} {{.L}} {{.E}} {{.R.X}} {{.R}}"), data) == "3 2.5 [a b] [] y {y}"
    with pytest.raises(ValueError, match="64-bit"):
        record("D", {"I": 2**63})


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


@pytest.mark.parametrize(
    ("source", "functions"),
    [
        ("{{ .Hostname }} upper", set()),
        ("{{ if eq .Zone `lower` }}{{ .Hostname | upper | trim }}{{ end }}", {"eq", "upper", "trim"}),
        ("{{ range .Tags }}{{ $x := (lower .).A }}{{ end }}", {"lower"}),
        ('{{ define "unused" }}{{ len .Tags }}{{ end }}{{ .Zone }}', {"len"}),
        ('{{ define "a" }}{{ . }}{{ end }}{{ template "a" upper .Zone }}', {"upper"}),
    ],
)
def test_the_functions_of_a_template_are_known_before_it_is_rendered(source: str, functions: set[str]):
    assert parse(source).functions == functions
