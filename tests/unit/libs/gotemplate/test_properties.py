"""Properties of every template and every value."""

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.gotemplate import Record, TemplateError, parse, record, render
from libs.gotemplate.bounds import MAX_TEXT

FRAGMENTS = st.sampled_from(
    [
        *(
            "{{",
            "}}",
            "{{-",
            "-}}",
            "{{/*",
            "*/}}",
            "(",
            ")",
            "|",
            ",",
            ":=",
            "=",
            ".",
            "$",
            "$x",
            ".Hostname",
        ),
        *(
            ".Tags",
            "if ",
            "else ",
            "end",
            "range ",
            "with ",
            "define ",
            "template ",
            "block ",
            "break",
            "nil",
        ),
        *(
            "continue",
            "true",
            "print ",
            "printf ",
            "index ",
            "regexFind ",
            "replace ",
            "upper ",
            "eq ",
            "and ",
        ),
        *('"%5d"', '"a"', "`b`", "'c'", "1", "0x", "1e9", "1e", "-", "+", "_", " ", "\n", "\t", "é", "\x00"),
        *("\ud800", "\\", '"', "`", "'", "{{if true}}", "{{end}}", "{{range 3}}", "{{.}}", "{{else}}"),
    ]
)
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


@given(st.text())
def test_base64_comes_back(text: str):
    assert outcome("{{.A | b64enc | b64dec}}", record("Values", {"A": text})) == text
