"""Expected sequences on a real server: what the ordering rule of the messages leans on."""

import msgspec
import pytest

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.ordered_publisher import OrderedPublisher, PublishOutcome
from libs.common.bus.protocol import BusError, WrongLastSequence
from libs.common.contract.subjects import ENRICHED_NODE, LEADING, STREAM
from libs.testbed.nats_server import NatsServer
from tests.builders import make_leading
from tests.bus_actors import MAX_BYTES, NODES, make_event, wait_until
from tests.integration.conftest import QUICK, ConnectBus, operating, read_raw

WEB_1 = f"{ENRICHED_NODE}.web-1"


async def test_after_ageing_out_zero_is_expected_and_an_old_value_refused(
    nats_bus: NatsBus, nats_server: NatsServer
):
    old = await nats_bus.publish(make_event(), expected_sequence=0)
    async with operating(nats_server) as operator:
        info = await operator.stream_info(STREAM)
        info.config.max_age = 0.5
        info.config.duplicate_window = 0.5
        await operator.update_stream(info.config)

    async def gone() -> bool:
        return await nats_bus.get_last(WEB_1) is None

    await wait_until(gone, "aged out")
    with pytest.raises(WrongLastSequence):
        await nats_bus.publish(make_event(), expected_sequence=old)
    assert await nats_bus.publish(make_event(), expected_sequence=0) > old


async def test_a_stream_made_anew_is_another_stream_id_and_knows_no_old_sequence(
    nats_bus: NatsBus, nats_server: NatsServer
):
    stream_id = nats_bus.stream_id
    for order in range(3):
        old = await nats_bus.publish(make_event(order=order))
    async with operating(nats_server) as operator:
        await operator.delete_stream(STREAM)
    assert await nats_bus.provision((NODES,), max_bytes=MAX_BYTES) != stream_id
    with pytest.raises(WrongLastSequence):
        await nats_bus.publish(make_event(), expected_sequence=old)
    assert await nats_bus.publish(make_event(), expected_sequence=0) == 1


async def test_a_killed_server_comes_back_with_its_stream_id_sequences_and_messages(
    nats_bus: NatsBus, nats_server: NatsServer
):
    stream_id = nats_bus.stream_id
    sequence = await nats_bus.publish(make_event(order=1))
    await nats_server.kill()
    await nats_server.restart()
    kept = await nats_bus.get_last(WEB_1)
    assert kept is not None
    assert kept.sequence == sequence
    await wait_until(lambda: nats_bus.problems() == ())
    assert nats_bus.stream_id == stream_id
    with pytest.raises(WrongLastSequence):
        await nats_bus.publish(make_event(order=2), expected_sequence=0)
    await nats_bus.publish(make_event(order=2), expected_sequence=sequence)


async def test_what_aged_out_while_the_server_was_down_leaves_nothing_to_expect(
    nats_bus: NatsBus, nats_server: NatsServer
):
    old = await nats_bus.publish(make_leading(), ttl_seconds=1)
    await nats_server.kill()
    await nats_server.restart()

    async def gone() -> bool:
        return await nats_bus.get_last(LEADING) is None

    await wait_until(gone, "expired")
    with pytest.raises(WrongLastSequence):
        await nats_bus.publish(make_leading(), expected_sequence=old, ttl_seconds=1)
    await nats_bus.publish(make_leading(), expected_sequence=0, ttl_seconds=1)


async def test_no_message_id_is_sent_so_the_same_words_are_stored_again(
    nats_bus: NatsBus, nats_server: NatsServer
):
    first = await nats_bus.publish(make_event(order=1))
    second = await nats_bus.publish(make_event(order=2))
    third = await nats_bus.publish(make_event(order=1))
    assert (second, third) == (first + 1, first + 2)
    headers = (await read_raw(nats_server, WEB_1)).headers or {}
    assert "Nats-Msg-Id" not in headers


async def test_a_publish_whose_acknowledgement_was_lost_is_recognised_as_ones_own(
    connect_bus: ConnectBus, nats_server: NatsServer
):
    impatient = await connect_bus("metadata", timing=msgspec.structs.replace(QUICK, publish_deadline=0.3))
    stream_id = await impatient.provision((NODES,), max_bytes=MAX_BYTES)
    publisher = OrderedPublisher(impatient)
    word = make_event(stream_id=stream_id)
    nats_server.pause()
    with pytest.raises(BusError):
        await publisher.publish(word)
    nats_server.resume()

    async def stored() -> bool:
        return await impatient.get_last(WEB_1) is not None

    await wait_until(stored, "what the frozen server had already been sent")
    with pytest.raises(WrongLastSequence):
        await impatient.publish(word, expected_sequence=0)
    assert await publisher.publish(word) is PublishOutcome.PUBLISHED
    message = await impatient.get_last(WEB_1)
    assert message is not None
    assert message.sequence == 1, "stored once, not twice"
