"""The ownership record: read from any annotation, and encoded equally by every replica."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.node import FIELD_OWNERSHIP_ANNOTATION, trim_node
from services.labeler.core.plan.ownership_record import (
    ManagedFields,
    encode_managed_fields,
    read_ownership_record,
)
from tests.builders import make_node
from tests.node_plans import set_ownership_record

MARKS = st.dictionaries(st.text(max_size=5), st.none() | st.text(max_size=5), max_size=4)
OWNED = st.builds(
    ManagedFields,
    version=st.just(1), machine=MARKS, labels=MARKS, annotations=MARKS, taints=MARKS,
    provider_id=st.sampled_from(["", "metal://1"]),
)  # fmt: skip


@given(OWNED)
def test_what_is_written_is_read(owned: ManagedFields):
    record = read_ownership_record(set_ownership_record(make_node(), encode_managed_fields(owned)))
    assert (record.state, record.managed_fields, record.problem) == ("read", owned, "")


def test_two_replicas_write_the_same_bytes():
    one = ManagedFields(labels={"a": "1", "b": None}, taints={"t:NoSchedule": ""})
    other = ManagedFields(labels={"b": None, "a": "1"}, taints={"t:NoSchedule": ""})
    assert (
        encode_managed_fields(one)
        == encode_managed_fields(other)
        == '{"labels":{"a":"1","b":null},"taints":{"t:NoSchedule":""},"v":1}'
    )


def test_a_node_without_one_says_so():
    record = read_ownership_record(make_node())
    assert (record.state, record.is_new, record.problem) == ("absent", True, "")


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "{}", '{"v":0}', '{"v":"1"}', '{"v":1,"labels":[]}', '{"v":1,"labels":{"a":1}}',
     '{"labels":{"a":"1"}}', "[" * 5000, '{"v":1,"labels":' + '{"a":' * 5000, "x" * 200_000, '{"v":-1}'],
)  # fmt: skip
def test_a_record_that_nobody_of_us_has_written_names_nothing(text: str):
    record = read_ownership_record(set_ownership_record(make_node(), text))
    assert (record.state, record.managed_fields, record.is_new) == ("unreadable", ManagedFields(), True)
    assert record.problem


@pytest.mark.parametrize("text", ['{"v":2}', '{"v":2,"labels":["of another shape"]}', '{"v":99,"labels":{}}'])
def test_a_record_of_a_newer_version_is_known_as_such(text: str):
    record = read_ownership_record(set_ownership_record(make_node(), text))
    assert (record.state, record.managed_fields, record.is_new) == ("newer", ManagedFields(), False)
    assert "newer" in record.problem


def test_fields_that_a_later_version_adds_are_no_reason_to_lose_the_rest():
    record = read_ownership_record(set_ownership_record(make_node(), '{"v":1,"labels":{"a":"1"},"later":{}}'))
    assert (record.state, record.managed_fields.labels) == ("read", {"a": "1"})


@given(st.text(max_size=200) | st.binary(max_size=100).map(lambda data: data.decode("latin-1")))
def test_no_text_breaks_the_reading(text: str):
    assert read_ownership_record(set_ownership_record(make_node(), text)).state in {
        "unreadable",
        "newer",
        "read",
    }


def test_the_record_travels_however_long_it_is():
    long = encode_managed_fields(ManagedFields(labels={f"example.com/key-{n}": "v" for n in range(200)}))
    node = trim_node(set_ownership_record(make_node(annotations={"theirs": "x" * 2000}), long))
    assert len(long) > 4000
    assert set(node.annotations) == {FIELD_OWNERSHIP_ANNOTATION, "alpha.kubernetes.io/provided-node-ip"}
    assert read_ownership_record(node).managed_fields.labels == msgspec.json.decode(long)["labels"]
