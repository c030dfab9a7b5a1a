"""What the owner of one stolen NATS key does with the subjects that this key may use."""

from datetime import UTC, datetime
from typing import Final

import msgspec

from libs.common.bus.nats.connection import Connection
from libs.common.bus.nats.jetstream import NANOSECONDS
from libs.common.bus.stream_limits import limit_for_bytes
from libs.common.contract.services import SERVICES
from libs.common.contract.subjects import DECIDED, FLOW, OBSERVED_NODE, STREAM
from libs.testbed.child_process import HANG_SECONDS
from tests.builders import make_decided
from tests.bus_actors import wait_until
from tests.integration.hostile.attacked_cluster import VICTIM
from tests.integration.hostile.attempts import Attempt
from tests.integration.hostile.forged_events import FORGED_EVENTS, CarryOut, make_attempt
from tests.integration.hostile.stolen_keys import StolenKeys

FALSE_DECISIONS: Final = "false decisions and garbage on its own subjects"
UNREAD: Final = "no service reads them"
DECIDERS: Final = tuple(
    spec.service
    for spec in SERVICES
    if f"{DECIDED}.{spec.service}.>" in spec.publishes
    and not any(each.startswith(FLOW) for each in spec.publishes)
)
GARBAGE: Final = (b"", b"null", b"[" * 50_000, b'{"event":"Decided.v1"}', bytes(range(256)) * 100)
replace = msgspec.structs.replace


def publishes_false_decisions(user: str) -> CarryOut:
    """False decisions about the victim, and garbage, on the decider's own subjects."""

    async def carry_out(keys: StolenKeys) -> None:
        for outcome in ("initialized", "approve", "deleted"):
            false = make_decided(
                service=user, name=VICTIM, outcome=outcome, reason="forged", decided_at=datetime.now(UTC)
            )
            await keys.publish(user, false)
        async with keys.connect(user) as client:
            for payload in GARBAGE:
                await keys.put(client, f"{DECIDED}.{user}.node.{VICTIM}", payload)

    return carry_out


async def fill_stream(keys: StolenKeys) -> None:
    """Large decisions about many names, more than a new stream can store; then small ones in their place."""
    payload = bytes(900_000)
    smallest = limit_for_bytes(0)
    names = [f"{DECIDED}.labeler.node.fill-{number}" for number in range(smallest // len(payload) + 1)]
    async with keys.connect("labeler") as client:
        stored = []
        for name in names:
            if b'"error"' in (await client.request(name, payload, seconds=HANG_SECONDS)).data:
                break  # full, unless the watcher has let the stream grow in time
            stored.append(name)
        await keys.cluster.let_honest_node_join()

        async def has_grown() -> bool:
            return (await keys.cluster.bus.stats()).max_bytes > smallest

        await wait_until(has_grown, "the stream has grown")
        for name in stored:
            await keys.put(client, name, b"")


async def send_large_message(keys: StolenKeys) -> None:
    """Larger than the server accepts, and than our own client would send."""
    payload = bytes(2 * 2**20)
    async with keys.connect("labeler") as client:
        await client._client._send_publish(f"{DECIDED}.labeler.node.large", "", payload, len(payload), None)
        await wait_until(lambda: not client._client.is_connected, "the server closes the connection")
    assert await keys.cluster.get_decision("labeler", "node", "large") is None


async def read_without_end(keys: StolenKeys) -> None:
    async with keys.connect("reader") as client:
        for number in range(20_000):
            await client.send(
                f"$JS.API.DIRECT.GET.{STREAM}.{OBSERVED_NODE}.none-{number}", reply="_INBOX_reader.x"
            )
        await client.round_trip(60)


async def create_consumers(keys: StolenKeys) -> None:
    """Consumers up to the limit of the account; csr restarts meanwhile, and finds no room for its own."""
    services = keys.cluster.services
    await services.children["csr"].stop()
    async with keys.connect("reader") as client:
        taken = [number for number in range(140) if await _create_consumer(client, f"thief-{number}")]
        assert len(taken) < 140
        services.restart("csr")

        async def is_waiting() -> bool:
            return "maximum consumers" in await services.fetch_page("csr", "/readyz?verbose")

        await wait_until(is_waiting, "csr reports that it cannot follow the stream")
        for number in taken:
            await client.request(f"$JS.API.CONSUMER.DELETE.{STREAM}.thief-{number}", seconds=HANG_SECONDS)
    await services.wait_until_ready()


async def _create_consumer(client: Connection, name: str) -> bool:
    config = {"name": name, "filter_subject": f"{FLOW}.>", "ack_policy": "none", "mem_storage": True}
    body = {"stream_name": STREAM, "config": config | {"inactive_threshold": 60 * NANOSECONDS}}
    subject = f"$JS.API.CONSUMER.CREATE.{STREAM}.{name}.{FLOW}.>"
    answer = await client.request(subject, msgspec.json.encode(body), seconds=HANG_SECONDS)
    return b'"error"' not in answer.data


SERVICE_ATTEMPTS: tuple[Attempt[StolenKeys], ...] = (
    *(make_attempt(user, FALSE_DECISIONS, UNREAD, publishes_false_decisions(user)) for user in DECIDERS),
    make_attempt("labeler", "decisions of 64 MiB", "the stream grows, and Nodes join", fill_stream),
    make_attempt("labeler", "a message of 2 MiB", "the server closes the connection", send_large_message),
    make_attempt("reader", "20,000 reads at once", "services go on", read_without_end),
    make_attempt(
        "reader",
        "consumers up to the limit of the account",
        "running services go on; **a service that restarts is not ready** until the consumers are gone",
        create_consumers,
    ),
    *FORGED_EVENTS,
)
