"""Hostile templates and hostile values cannot hang the labeler or exhaust its memory."""

import inspect
import sys
import time
import tracemalloc

import pytest

from libs.gotemplate import TemplateError, parse, record, render
from libs.gotemplate.bounds import MAX_DEPTH, MAX_SOURCE, MAX_TEXT

LONGEST_SECONDS = 20.0  # measured: under 0.5 s each; a hang is what this is about
MOST_MEMORY = 40_000_000  # bytes; measured: under 12 MB

FACTS = record(
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
        render(parse(source), FACTS)
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
            render(parsed, FACTS)
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
    assert render(parse(source), FACTS) is not None


def test_a_caller_deep_in_its_own_stack_gets_an_error_of_the_template():
    parsed = parse("{{print " + "(print " * 30 + "1" + ")" * 30 + "}}")

    def below(frames: int) -> str:
        return below(frames - 1) if frames else render(parsed, FACTS)

    depth = len(inspect.stack(0))
    with pytest.raises(TemplateError, match="too deeply"):
        below(sys.getrecursionlimit() - depth - 60)
