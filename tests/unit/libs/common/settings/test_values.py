"""Texts of flags: durations and lists, there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.settings.command_line import format_duration, parse_command_line, parse_duration, parse_list


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("5m0s", 300.0),
        ("10s", 10.0),
        ("1h", 3600.0),
        ("1.5h", 5400.0),
        ("300ms", 0.3),
        ("2us", 2e-6),
        ("2µs", 2e-6),
        ("1h15m30.918s", 4530.918),
        ("-10s", -10.0),
        ("+10s", 10.0),
        (".5s", 0.5),
        ("1.s", 1.0),
    ],
)
def test_go_durations(text: str, seconds: float):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "5", "5 m", "m", "5x", "1m 30s", "--5s", "+-5s", "5s ", "٥s", "1e3s", "s5", "9" * 9999]
)
def test_what_go_refuses_we_refuse(text: str):
    with pytest.raises(ValueError, match="a duration such as"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["2562048h", "-9999999999h", "9999999999999999999s"])
def test_a_duration_that_go_cannot_count_is_refused(text: str):
    with pytest.raises(ValueError, match="a duration of less than 2562047h"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**7))
def test_a_duration_survives_the_way_there_and_back(milliseconds: int):
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(
        milliseconds / 1000, rel=1e-5
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(300.0, "5m0s"), (0.0, "0s"), (0.5, "500ms"), (3723.5, "1h2m3.5s"), (15.0, "15s")]
)
def test_durations_are_written_as_go_writes_them(seconds: float, text: str):
    assert format_duration(seconds) == text


def test_lists_are_comma_separated_and_forgive_spaces():
    assert parse_list(" a, b,,c ,") == ("a", "b", "c")
    assert parse_list("") == ()


@given(st.lists(st.text(max_size=8), max_size=8))
def test_no_command_line_breaks_the_reader(arguments: list[str]):
    words = parse_command_line(arguments, {"v": True, "leader-elect": False})
    total = len(words.flags) + len(words.unknown) + len(words.mistakes)
    assert words.wants_help or words.wants_version or (total > 0) is bool(arguments)
