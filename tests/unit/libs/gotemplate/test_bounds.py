"""Hostile templates and values cannot hang the labeler or exhaust its memory; properties of any template."""

import functools
import inspect
import sys
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.gotemplate import Record, TemplateError, parse, record, render
from libs.gotemplate.bounds import MAX_DEPTH, MAX_SOURCE, MAX_TEXT

LONGEST_SECONDS = 20.0  # measured: under 0.5 s each; a hang is what this is about
MOST_MEMORY = 40_000_000  # bytes; measured: under 12 MB


@functools.cache
def facts() -> Record:
    """A hostile machine; 100,000 tags take long to make."""
    return record(
        "Machine",
        {
            "Hostname": "web-1",
            "Long": "a" * MAX_TEXT,
            "Half": "ab" * (MAX_TEXT // 4),
            "TooLong": "a" * (MAX_TEXT + 1),
            "Huge": "a" * 5_000_000,
            "Number": 2**62,
            "Tags": {f"key-{n}": "v" * 100 for n in range(100_000)},
            "Few": {f"key-{n}": "" for n in range(1_000)},
        },
    )


def nested(opening: str, closing: str, depth: int) -> str:
    return opening * depth + "x" + closing * depth


WIDE = {  # arguments of printf
    "a wide number": '"%1000000d" 1',
    "a wide text": '"%-999999s" .Hostname',
    "many digits": '"%.1000000f" 1.5',
    "many zeros": '"%.1000000d" 1',
    "many zeros of a float": '"%0999999.2f" -1.5',
    "wide entries": '"%60000v" .Few',
    "wide arguments that are missing": f'"{"%60000d" * 2000}" 1 2 3',
}
HOSTILE = {
    # loops
    "a long loop": ("{{range 1000000000}}{{end}}", "MAX_STEPS"),
    "a number of the machine's": ("{{range .Number}}{{end}}", "MAX_STEPS"),
    "loops in loops": ("{{range 1000}}{{range 1000}}{{range 1000}}{{end}}{{end}}{{end}}", "MAX_STEPS"),
    "a loop over many tags": ("{{range .Tags}}{{end}}", "MAX_STEPS"),
    "many tags printed": ("{{.Tags}}", "MAX_STEPS"),
    "many entries printed": ("{{range .Few}}{{print $.Few}}{{end}}", "MAX_"),
    "everything printed": ("{{.}}", "MAX_STEPS"),
    "everything formatted": ('{{printf "%v %s" . .}}', "MAX_STEPS"),
    "a recursion": ('{{define "a"}}{{template "a"}}{{end}}{{template "a"}}', "MAX_RUN_DEPTH"),
    "a recursion of two": (
        '{{define "a"}}{{template "b"}}{{end}}{{define "b"}}{{template "a"}}{{end}}{{template "a"}}',
        "MAX_RUN_DEPTH",
    ),
    "calls that double": (
        "".join(
            '{{define "tN"}}{{template "tM"}}{{template "tM"}}{{end}}'.replace("N", str(n)).replace(
                "M", str(n + 1)
            )
            for n in range(30)
        )
        + '{{define "t30"}}x{{end}}{{template "t0"}}',
        "MAX_STEPS",
    ),
    # texts
    "output that grows": ("{{range 10000}}0123456789{{end}}", "MAX_"),
    "a text that doubles": ('{{$x := "ab"}}{{range 100}}{{$x = print $x $x}}{{end}}', "MAX_TEXT"),
    "many long variables": (
        "".join(f'{{{{$v{n} := printf "%60000d" {n}}}}}' for n in range(200)),
        "MAX_STEPS",
    ),
    "many variables": ("".join(f"{{{{$v{n} := 1}}}}" for n in range(1500)), "MAX_VARIABLES"),
    "variables looked up": (
        "".join(f"{{{{$v{n} := 1}}}}" for n in range(250)) + "{{range 100000}}" + "{{$}}" * 100 + "{{end}}",
        "MAX_STEPS",
    ),
    **{name: (f"{{{{printf {arguments}}}}}", "MAX_TEXT") for name, arguments in WIDE.items()},
    "a replacement that multiplies": ('{{replace "a" .Long .Long}}', "MAX_TEXT"),
    "a replacement of nothing": ('{{replace "" .Long .Long}}', "MAX_TEXT"),
    "a regular replacement that multiplies": ('{{regexReplaceAll "a" .Long .Long}}', "MAX_"),
    "groups that multiply": ('{{regexReplaceAll "(.*)" .Half "$1$1$1$1$1"}}', "MAX_TEXT"),
    "encodings that repeat": ("{{range 100}}{{$x := b64enc $.Half | b64dec}}{{end}}", "MAX_STEPS"),
    "a field that is too long": ("{{.TooLong}}", "MAX_TEXT"),
    "a field that is huge": ("{{len .Huge}}", "MAX_TEXT"),
    # regular expressions
    "an expression that is too long": (f"{{{{regexFind `{'a' * 2000}` .Hostname}}}}", "MAX_REGEX"),
    "an expression that multiplies": ("{{regexFind `((a{100}){100}){100}` .Hostname}}", None),
    "an expression of classes": (r"{{regexFind `[\pL\pN]{100}` .Hostname}}", "MAX_REGEX_MEMORY"),
    "a slow expression": ("{{regexFind `((a?){500})(a{500})b` .Long}}", "MAX_STEPS"),
    "a search that starts again at each byte": ("{{regexReplaceAll `a.*b|a` .Long ``}}", "MAX_STEPS"),
    "many expressions": (
        "{{range $n := 20000}}{{$x := regexFind (printf `a{500}%d` $n) $.Hostname}}{{end}}",
        "MAX_STEPS",
    ),
    # sources
    "a long source": ("x" * (MAX_SOURCE + 1), "MAX_SOURCE"),
    "deep parentheses": ("{{" + nested("(", ")", 10_000) + "}}", "MAX_DEPTH"),
    "deep blocks": (nested("{{if true}}", "{{end}}", 1_000), "MAX_DEPTH"),
    "deep loops": (nested("{{range 3}}", "{{end}}", 1_000), "MAX_DEPTH"),
    "deep definitions": (nested('{{block "a" .}}', "{{end}}", 1_000), "MAX_DEPTH"),
    "many digits of a constant": ("{{" + "9" * 30_000 + "}}", None),
    "many actions": ("{{range 9}}" + "{{1}}" * 6_000 + "{{end}}", "MAX_STEPS"),
    "many arguments": ("{{print " + "1 " * 15_000 + "}}{{range 9999}}{{.}}{{end}}", "MAX_STEPS"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_in_time_and_by_the_name_of_the_bound(name: str):
    source, bound = HOSTILE[name]
    started = time.process_time()
    with pytest.raises(TemplateError) as refused:
        render(parse(source), facts())
    assert time.process_time() - started < LONGEST_SECONDS
    if bound is not None:
        assert bound in refused.value.reason


@pytest.mark.parametrize(
    "name", ["a text that doubles", "many long variables", "a replacement that multiplies", "wide entries"]
)
def test_a_hostile_template_does_not_take_the_memory(name: str):
    parsed = parse(HOSTILE[name][0])
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError):
            render(parsed, facts())
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "source",
    [
        nested("{{if true}}", "{{end}}", MAX_DEPTH),
        "{{print " + nested("(print ", ")", MAX_DEPTH).replace("x", "1") + "}}",
        "{{if false}}a" + "{{else if false}}b" * 1_000 + "{{else}}c{{end}}",
        "{{range 3000}}{{if .}}{{end}}{{end}}",
        "x" * MAX_SOURCE,
    ],
    ids=["blocks", "parentheses", "a table of a thousand cases", "a loop", "a long text"],
)
def test_what_is_within_the_bounds_renders(source: str):
    assert render(parse(source), facts()) is not None


def test_a_caller_deep_in_its_own_stack_gets_an_error_of_the_template():
    parsed = parse("{{print " + "(print " * 30 + "1" + ")" * 30 + "}}")

    def below(frames: int) -> str:
        return below(frames - 1) if frames else render(parsed, facts())

    depth = len(inspect.stack(0))
    with pytest.raises(TemplateError, match="too deeply"):
        below(sys.getrecursionlimit() - depth - 60)


# ---- properties


TOKENS = r"""
{{ }} {{- -}} {{/* */}} ( ) | , := = . $ $x .Hostname .Tags end break nil continue true
"%5d" "a" `b` 'c' 1 0x 1e9 1e - + _ é \ " ` ' {{end}} {{.}} {{else}}
"""
WORDS = "if else range with define template block print printf index regexFind replace upper eq and"
OTHERS = [" ", "\n", "\t", "\x00", "\ud800", "{{if true}}", "{{range 3}}"]
FRAGMENTS = st.sampled_from([*TOKENS.split(), *(f"{word} " for word in WORDS.split()), *OTHERS])
SOURCES = st.one_of(
    st.text(),
    st.lists(FRAGMENTS, max_size=30).map("".join),
    st.lists(FRAGMENTS, max_size=12).map("".join).map("{{{{{}}}}}".format),
)
SPACE = st.text(" \t\r\n", max_size=4)
WORD = st.text("ab\u00a0\u3000", max_size=3)
VALUES = st.text() | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.dictionaries(st.text(), st.text())
PLAIN = record("Machine", {"Hostname": "web-1", "Tags": {"a": "1"}})


def outcome(source: str, data: Record = PLAIN) -> str | TemplateError:
    try:
        return render(parse(source), data)
    except TemplateError as error:
        return error


@given(SOURCES)
@settings(max_examples=200)
def test_any_source_gives_a_bounded_text_or_an_error_with_its_place(source: str):
    result = outcome(source)
    if isinstance(result, TemplateError):
        assert 1 <= result.line <= source.count("\n") + 1
        assert str(result).startswith(f"{result.line}:{result.column}: ")
    else:
        assert len(result.encode()) <= MAX_TEXT


@given(st.text().filter(lambda text: "{{" not in text))
def test_a_text_without_actions_renders_itself(text: str):
    assert outcome(text) == text


@given(WORD, SPACE, SPACE, WORD)
def test_a_trim_marker_takes_the_ascii_space_beside_it_and_nothing_else(before, left, right, after):
    assert outcome(f"{before}{left}{{{{ 1 }}}}{right}{after}") == f"{before}{left}1{right}{after}"
    assert outcome(f"{before}{left}{{{{- 1 }}}}{right}{after}") == f"{before}1{right}{after}"
    assert outcome(f"{before}{left}{{{{ 1 -}}}}{right}{after}") == f"{before}{left}1{after}"
    assert outcome(f"{before}{left}{{{{- 1 -}}}}{right}{after}") == f"{before}1{after}"


@given(st.text(), st.text())
def test_nothing_that_a_machine_says_is_escaped_or_read_as_a_template(hostname: str, tag: str):
    facts = record("Machine", {"Hostname": hostname, "Tags": {"a": tag}})
    assert outcome("{{.Hostname}}/{{.Tags.a}}", facts) == f"{hostname}/{tag}"


@given(VALUES, st.text(" +-#0123456789.*[]", max_size=8), st.characters(exclude_categories=["Cs"]))
@settings(max_examples=200)
def test_any_format_of_any_value_gives_a_text_or_a_refusal_or_names_a_bound(value, flags, verb):
    facts = record("Values", {"Format": f"%{flags}{verb}|%v", "Value": value})
    result = outcome("{{printf .Format .Value 2}}", facts)
    assert isinstance(result, str) or result.kind == "bound" or "does not support" in result.reason


@given(
    st.text("ab(|)*+?[]{}^$.\\1dwpL", max_size=12), st.text("ab1$", max_size=12), st.text("${}1a", max_size=6)
)
@settings(max_examples=200)
def test_any_expression_gives_a_text_or_says_what_is_wrong_with_it(pattern, text, replacement):
    facts = record("Values", {"P": pattern, "T": text, "R": replacement})
    result = outcome("{{regexFindString .P .T 1}}{{regexReplaceAll .P .T .R}}", facts)
    assert isinstance(result, str) or result.kind == "bound" or "error parsing regexp" in result.reason


@given(st.text())
def test_upper_and_lower_keep_the_number_of_characters(text: str):
    facts = record("Values", {"A": text})
    for function in ("upper", "lower"):
        changed = outcome(f"{{{{{function} .A}}}}", facts)
        assert isinstance(changed, str)
        assert len(changed) == len(text)
