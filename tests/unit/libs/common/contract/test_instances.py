"""The record that an instance was seen alive counts for one Node object and one providerID."""

import pytest

from libs.common.contract import events
from libs.common.contract.instances import (
    RECORD_ANNOTATION,
    RECORD_DIGEST_LABEL,
    InstanceAnchor,
    InstanceRecord,
    encode_instance_record,
    read_instance_record,
)
from libs.common.contract.node import Node, trim_node
from libs.common.contract.ordering import Recency, compare_events
from libs.common.contract.protected_annotation import compute_digest
from libs.common.contract.subjects import subject_of
from tests.builders import NOW, STREAM_ID, make_node

RECORD = InstanceRecord(
    account="prod",
    provider_id="hcloud://7",
    node_uid="uid-1",
    system_uuid="4C4C4544-0000",
    anchor=InstanceAnchor(kind="network", id="4711"),
    seen_at=NOW,
)


def make_recorded_node(
    text: str, *, digest: str = "", uid: str = "uid-1", provider_id: str = "hcloud://7"
) -> Node:
    labels = {RECORD_DIGEST_LABEL: digest or compute_digest(text)}
    return make_node(annotations={RECORD_ANNOTATION: text}, labels=labels, uid=uid, provider_id=provider_id)


def test_the_record_of_a_node_survives_what_the_watcher_cuts():
    assert read_instance_record(trim_node(make_recorded_node(encode_instance_record(RECORD)))) == RECORD


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(make_node(uid="uid-1", provider_id="hcloud://7"), id="absent"),
        pytest.param(make_recorded_node(encode_instance_record(RECORD), digest="0" * 56), id="forged"),
        pytest.param(make_recorded_node(encode_instance_record(RECORD), uid="uid-2"), id="another uid"),
        pytest.param(
            make_recorded_node(encode_instance_record(RECORD), provider_id="hcloud://8"),
            id="another providerID",
        ),
        pytest.param(make_recorded_node("{}"), id="incomplete"),
        pytest.param(make_recorded_node("[" * 900), id="not JSON"),
    ],
)
def test_a_record_that_does_not_belong_to_the_node_is_none(node: Node):
    assert read_instance_record(node) is None


def make_unknown(at_microsecond: int) -> events.InstanceUnknown:
    at = NOW.replace(microsecond=at_microsecond)
    return events.InstanceUnknown(
        stream_id=STREAM_ID, account="prod", name="web-1", node_uid="uid-1", provider_id="hcloud://7",
        asked_at=at, answered_at=at, credential_loaded_at=NOW, reason="HTTP 503",
    )  # fmt: skip


def test_a_report_replaces_only_one_of_an_earlier_round():
    assert subject_of(make_unknown(0)) == "talosccm.v1.cloud.prod.instance.web-1"
    assert compare_events(make_unknown(2), make_unknown(1), STREAM_ID) is Recency.NEWER
    assert compare_events(make_unknown(1), make_unknown(2), STREAM_ID) is Recency.OLDER
    assert compare_events(make_unknown(1), make_unknown(1), STREAM_ID) is Recency.SAME
