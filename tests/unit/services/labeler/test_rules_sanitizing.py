"""The nearest valid label value: examples, and properties of every text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.cloud_config.kubernetes_names import label_value_problem
from services.labeler.core.rules.value_validation import sanitize_label_value


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("Standard PC (i440FX + PIIX, 1996)", "Standard-PC-i440FX-PIIX-1996"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "Intel-R-Xeon-R-CPU-2.20GHz"),
        ("Zürich", "Z-rich"),
        (" v1 ", "v1"),
        ("--a__b..", "a__b"),
        ("a" * 62 + "-b", "a" * 62),
        ("a" * 64, "a" * 63),
        (" \t", ""),
        ("日本", ""),
        ("", ""),
        ("1.10", "1.10"),
    ],
)
def test_a_text_becomes_the_nearest_label_value(text: str, nearest: str):
    assert sanitize_label_value(text) == nearest


@given(st.text(max_size=200))
def test_whatever_comes_out_is_a_label_value_and_stays_one(text: str):
    nearest = sanitize_label_value(text)
    assert not label_value_problem(nearest)
    assert sanitize_label_value(nearest) == nearest


@given(st.from_regex(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?", fullmatch=True))
def test_a_label_value_stays_as_it_is(value: str):
    assert sanitize_label_value(value) == value
