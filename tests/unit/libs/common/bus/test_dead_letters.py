from datetime import UTC, datetime

import msgspec

from libs.common.bus.dead_letters import make_dead_letter
from libs.common.bus.protocol import UnreadablePayload
from libs.common.contract.events import MAX_EVENT_BYTES, DeadLetter, encode
from tests.builders import make_message, make_node, make_node_observed

AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_letter_can_be_published_however_large_what_it_is_about():
    huge = make_node(annotations={f"key-{number}": "x" * 1000 for number in range(300)})
    for event in (
        make_node_observed(huge),
        UnreadablePayload(reason="no JSON", payload=b"\x00" * MAX_EVENT_BYTES),
    ):
        letter = make_dead_letter(
            make_message(event, subject="talosccm.v1.flow.enriched.node.web-1"),
            service="labeler",
            reason="why " * MAX_EVENT_BYTES,
            at=AT,
        )
        assert msgspec.json.decode(encode(letter), type=DeadLetter).name == "web-1"
