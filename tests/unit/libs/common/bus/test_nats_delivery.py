"""The origin that a delivered message claims: any client that knows our inbox may have written it."""

import pytest

from libs.common.bus.nats.client import WireMessage
from libs.common.bus.nats.jetstream import parse_delivery
from libs.common.bus.protocol import BusError


def a_delivery(reply: str) -> WireMessage:
    return WireMessage("talosccm.v1.flow.snapshot", reply, b"")


def test_both_forms_of_a_reply_subject_are_read():
    for reply in (
        "$JS.ACK.S.C.2.30.4.1700000000000000000.5",
        "$JS.ACK._.h.S.C.2.30.4.1700000000000000000.5",
        "$JS.ACK._.h.S.C.2.30.4.1700000000000000000.5.x",
        "$JS.ACK.1.2.S.C.2.30.4.1700000000000000000.5.x.y",
    ):
        read = parse_delivery(a_delivery(reply))
        assert (read.attempt, read.sequence, read.consumer_sequence, read.pending) == (2, 30, 4, 5)


@pytest.mark.parametrize(
    "reply",
    ["", "evil.subject", "$JS.ACK.S.C.x.1.1.1.1", "$JS.ACK.S.C.1.-1.1.1.1", f"$JS.ACK.S.C.1.1.1.{10**30}.1",
     "$JS.ACK.S.C.1.\u0665.1.1.1", "$JS.ACK.S.C.1.1.1.1.1.1", "$JS.ACK.S.C.1.1.1.1.1\n"],
)  # fmt: skip
def test_a_forged_one_ends_the_pull_and_not_the_process(reply: str):
    with pytest.raises(BusError, match="not delivered by JetStream"):
        parse_delivery(a_delivery(reply))
