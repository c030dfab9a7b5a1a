"""Stream and durables on a real server: made, kept, repaired, or refused in words."""

import msgspec
import pytest
from nats.js.api import ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.nats.provision import durable_config, stream_config
from libs.common.bus.protocol import BusError
from libs.common.bus.stream_limits import subtract_headroom
from libs.common.contract.services import DURABLES
from libs.common.contract.subjects import ALL_SUBJECTS, STREAM
from libs.testbed.nats_server import NatsServer
from tests.bus_actors import MAX_BYTES, NODES, Worker, make_event, wait_until
from tests.integration.conftest import ConnectBus, operating

MEBIBYTE = 1024 * 1024


async def raw_config(server: NatsServer, kind: str) -> dict[str, object]:
    async with operating(server) as operator:
        api = f"$JS.API.{kind}"
        answer = await operator._nc.request(api)
        config: dict[str, object] = msgspec.json.decode(answer.data)["config"]
        return config


async def test_stream_and_durables_are_made_as_the_design_says(nats_bus: NatsBus, nats_server: NatsServer):
    await nats_bus.provision(DURABLES, max_bytes=MAX_BYTES)
    stream = await raw_config(nats_server, f"STREAM.INFO.{STREAM}")
    assert stream_config(MAX_BYTES).items() <= stream.items()
    assert (stream["max_msgs_per_subject"], stream["discard"], stream["max_age"]) == (1, "new", 3600 * 10**9)
    for durable in DURABLES:
        consumer = await raw_config(nats_server, f"CONSUMER.INFO.{STREAM}.{durable.name}")
        assert durable_config(durable).items() <= consumer.items()
        assert (consumer["max_deliver"], consumer["max_ack_pending"]) == (-1, 20_000)


async def test_what_somebody_changed_is_repaired_and_what_is_not_ours_stays(
    nats_bus: NatsBus, nats_server: NatsServer
):
    async with operating(nats_server) as operator:
        stream = (await operator.stream_info(STREAM)).config
        stream.max_age, stream.description = 60.0, "the operator's note"
        stream.duplicate_window = 30.0
        await operator.update_stream(stream)
        consumer = (await operator.consumer_info(STREAM, NODES.name)).config
        consumer.max_ack_pending, consumer.ack_wait = 5, 1.0
        await operator.add_consumer(STREAM, consumer)
    await nats_bus.provision((NODES,), max_bytes=MAX_BYTES)
    config = await raw_config(nats_server, f"STREAM.INFO.{STREAM}")
    assert config["description"] == "the operator's note"
    assert stream_config(MAX_BYTES).items() <= config.items()
    durable = await raw_config(nats_server, f"CONSUMER.INFO.{STREAM}.{NODES.name}")
    assert durable_config(NODES).items() <= durable.items()


async def test_a_durable_that_cannot_be_updated_is_made_anew_and_replays(
    nats_bus: NatsBus, nats_server: NatsServer
):
    await nats_bus.publish(make_event("web-1"))
    async with operating(nats_server) as operator:
        await operator.delete_consumer(STREAM, NODES.name)
        await operator.add_consumer(
            STREAM,
            ConsumerConfig(
                durable_name=NODES.name, filter_subject=NODES.filter, deliver_policy=DeliverPolicy.NEW
            ),
        )
    await nats_bus.provision((NODES,), max_bytes=MAX_BYTES)
    worker = Worker()
    async with worker.consume(nats_bus):
        await wait_until(lambda: worker.list_names() == ["web-1"])


async def test_a_stream_that_cannot_be_made_right_is_told_with_what_to_do(
    connect_bus: ConnectBus, nats_server: NatsServer
):
    async with operating(nats_server) as operator:
        await operator.add_stream(
            StreamConfig(name=STREAM, subjects=[ALL_SUBJECTS], storage=StorageType.MEMORY)
        )
    bus = await connect_bus()
    with pytest.raises(BusError, match=f"stream {STREAM} has a wrong configuration.*delete it"):
        await bus.provision((NODES,), max_bytes=MAX_BYTES)


async def limit_store(server: NatsServer, max_bytes: int) -> None:
    limited = f'jetstream {{ store_dir: "{server.store}", max_file_store: {max_bytes} }}\n'
    (server.run_dir / "nats.conf").write_text(limited)
    await server.restart()


async def test_a_server_without_room_for_the_smallest_stream_is_reported(
    nats_server: NatsServer, connect_bus: ConnectBus
):
    await limit_store(nats_server, 10 * MEBIBYTE)
    bus = await connect_bus()
    with pytest.raises(BusError, match="insufficient"):
        await bus.provision((NODES,), max_bytes=447 * MEBIBYTE)


async def test_closing_the_headroom_keeps_what_an_operator_changed_meanwhile(
    nats_bus: NatsBus, nats_server: NatsServer
):
    async with nats_bus.headroom(make_event()), operating(nats_server) as operator:
        stream = (await operator.stream_info(STREAM)).config
        stream.description = "the operator's note"
        await operator.update_stream(stream)
    config = await raw_config(nats_server, f"STREAM.INFO.{STREAM}")
    assert config["description"] == "the operator's note"
    assert config["max_bytes"] == subtract_headroom(MAX_BYTES)
