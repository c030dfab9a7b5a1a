import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.safe_yaml import YamlError, read_yaml
from libs.talos.talosconfig import CredentialsError, parse_talosconfig


class Document(msgspec.Struct):
    context: str = ""
    contexts: dict[str, object] = {}


LAUGHS = "a0: &a0 {x: y}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 9)
)
BOMBS = {
    "deep-lists": "[" * 200_000,  # ends the process in the C composer
    "deep-mappings": "a: " + "{a: " * 100_000,
    "deep-blocks": "\n".join(" " * level + "a:" for level in range(1000)),
    "merged-aliases": LAUGHS,
    "many-aliases": "a: &a [x]\nb: [" + "*a, " * 1000 + "]",
    "huge": "a: " + "x" * (1 << 20),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_would_break_the_parser_is_refused_before_it_is_built(bomb: str):
    with pytest.raises(YamlError):
        read_yaml(BOMBS[bomb].encode(), Document)
    with pytest.raises(CredentialsError, match=r"^f: not a talosconfig: "):
        parse_talosconfig(BOMBS[bomb].encode(), source="f")
    with pytest.raises(CloudConfigError, match=r"^f"):
        parse_cloud_config(BOMBS[bomb], "f")


@pytest.mark.parametrize("value", ["2024-13-45", "0x_", "!!bool x", "!!timestamp x", "!!int x", "!!float x"])
def test_a_value_that_the_library_stumbles_over_is_a_mistake_in_the_file(value: str):
    with pytest.raises(YamlError) as caught:
        read_yaml(f"context: {value}".encode(), Document)
    assert "\n" not in str(caught.value)
    with pytest.raises(CredentialsError, match=r"^f: not a talosconfig: "):
        parse_talosconfig(f"context: {value}".encode(), source="f")
    with pytest.raises(CloudConfigError, match=r"preferIPv6 is .*, not true or false"):
        parse_cloud_config(f"global: {{preferIPv6: {value}}}", "f")


def test_anchors_that_people_write_are_read():
    text = b"base: &base {a: 1}\ncontexts: {one: *base, two: {<<: *base, b: 2}}\n"
    assert read_yaml(text, Document).contexts == {"one": {"a": 1}, "two": {"a": 1, "b": 2}}


@given(st.binary(max_size=60))
def test_no_bytes_have_another_outcome_than_a_document_or_a_yaml_error(text: bytes):
    with contextlib.suppress(YamlError):
        assert isinstance(read_yaml(text, Document), Document)
