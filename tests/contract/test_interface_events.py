"""Events on the bus: tags, JSON keys, types, defaults, values, subjects, dead letters, limits."""

import typing

import msgspec
import pytest
from msgspec import inspect

from libs.common.bus.dead_letters import make_dead_letter
from libs.common.bus.protocol import Message, UnreadablePayload
from libs.common.contract import events
from libs.common.contract.machine import CONNECT_STEP
from libs.common.contract.subjects import (
    ALL_SUBJECTS,
    is_csr_subject,
    is_node_subject,
    is_publishable_name,
    subject_of,
)
from libs.talos import resources
from services.metadata.machines import identity
from services.metadata.machines.identity import MachineIdentity, verify
from tests.builders import NOW, STREAM_ID, make_facts, make_message, make_node, make_node_observed
from tests.contract.interface_snapshot import assert_unchanged
from tests.contract.wire_shapes import sample_of, shape_of

KINDS = {str(kind.__struct_config__.tag): kind for kind in typing.get_args(events.Event)}


def a_full(tag: str, **changes: object) -> events.Event:
    """The event with that tag, every key set; `changes` replaces top-level keys."""
    document = sample_of(inspect.type_info(KINDS[tag])) | changes
    return events.decode(msgspec.json.encode(document))


@pytest.mark.parametrize("tag", sorted(KINDS))
def test_keys_types_and_defaults_of_an_event_are_unchanged(tag: str):
    assert_unchanged(f"event-{tag}", shape_of(inspect.type_info(KINDS[tag])))


def test_an_event_with_every_key_is_written_in_the_same_bytes():
    written = {tag: events.encode(a_full(tag)).decode() for tag in KINDS}
    assert_unchanged("event-bytes", written)


@pytest.mark.parametrize("tag", sorted(KINDS))
def test_an_event_with_every_key_comes_back_with_every_key(tag: str):
    document = sample_of(inspect.type_info(KINDS[tag]))
    assert msgspec.json.decode(events.encode(a_full(tag))) == document


def test_each_event_goes_to_the_same_subject():
    assert_unchanged("event-subjects", {tag: subject_of(a_full(tag)) for tag in KINDS})


def test_the_name_of_an_object_stands_in_the_subject_as_it_is():
    name = "web-1.example.org"
    named = {
        tag: subject_of(a_full(tag, name=name))
        for tag, kind in KINDS.items()
        if "name" in {field.encode_name for field in msgspec.structs.fields(kind)}
    }
    subjects = {subject_of(a_full(tag)) for tag in KINDS}
    names = ["web-1", name, "a" * 253, "a" * 254, "", "a b", "a*", "a>", "a..b", ".a", "a.", "é", "csr-\x7f"]
    assert_unchanged(
        "subjects-of-names",
        {
            "subject with dots in the name": named,
            "names that are published": {each: is_publishable_name(each) for each in names},
            "subjects about a node": sorted(filter(is_node_subject, subjects)),
            "subjects about a request": sorted(filter(is_csr_subject, subjects)),
            "all": ALL_SUBJECTS,
        },
    )


def test_a_dead_letter_is_unchanged():
    def written(message: Message) -> object:
        letter = make_dead_letter(message, service="labeler", reason="no reason", at=NOW)
        return {"subject": subject_of(letter), "message": msgspec.to_builtins(letter)}

    def unreadable(subject: str, payload: bytes) -> Message:
        return make_message(UnreadablePayload(reason="broken", payload=payload), sequence=9, subject=subject)

    flow = "talosccm.v1.flow.enriched.node.web-1.example.org"
    long = make_dead_letter(unreadable(flow, b"x" * 9000), service="labeler", reason="r" * 9000, at=NOW)
    assert_unchanged(
        "dead-letters",
        {
            "of bytes that nobody can read": written(unreadable(flow, b"{\xff")),
            "of an event": written(
                make_message(make_node_observed(make_node(), stream_id=STREAM_ID), sequence=9)
            ),
            "of a subject without an object": written(unreadable("talosccm.v1.flow.networks", b"{")),
            "of a subject outside the flow": written(unreadable("talosccm.v1.decided.a.node.b", b"{")),
            "characters of the longest payload and reason": [len(long.payload), len(long.reason)],
        },
    )


def test_values_that_are_plain_text_in_the_schema_are_unchanged():
    uuid = "4c4c4544-0044-4710-8052-b4c04f4d3032"
    by_name = verify(make_node(), make_facts(), None)
    by_uuid = verify(make_node("other", system_uuid=uuid), make_facts(uuid=uuid), ())
    assert isinstance(by_name, MachineIdentity)
    assert isinstance(by_uuid, MachineIdentity)
    asked = [each for each in vars(resources).values() if isinstance(each, resources.ResourceRef)]
    steps = {each.step for each in (*asked, *resources.INVENTORY.values())}
    values = {
        "recognized_by": [by_name.method, by_uuid.method],
        "steps of a fault": sorted(steps | {CONNECT_STEP, identity.STEP}),
    }
    assert_unchanged("event-values", values)


def test_the_largest_event_is_unchanged():
    limits = {
        "Decided.v1": largest("Decided.v1", "reason"),
        "NodeObserved.v1": largest("NodeObserved.v1", "incarnation"),
    }
    assert_unchanged("event-limits", limits)


def largest(tag: str, key: str) -> int:
    """Bytes of the largest event with that tag that is written."""
    low, high = 0, 1024 * 1024
    while high - low > 1:
        middle = (low + high) // 2
        try:
            events.encode(a_full(tag, **{key: "x" * middle}))
        except events.EventError:
            high = middle
        else:
            low = middle
    return len(events.encode(a_full(tag, **{key: "x" * low})))
