"""NATS: the bytes that the bus sends, the stream and its consumers, users and their rights."""

import asyncio
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import msgspec

from libs.common.bus.delivery import Ack, Disposition, Nak, Reject
from libs.common.bus.memory.stream import subject_matcher
from libs.common.bus.message_age import MAX_MESSAGE_AGE
from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.bus.nats.provision import durable_config, stream_config
from libs.common.bus.nats.reload import reload_server
from libs.common.bus.protocol import Message, StreamPosition
from libs.common.contract import events
from libs.common.contract.service_spec import Durable, PolicyRule, ServiceSpec
from libs.common.contract.services import DURABLES, READER_USER, SERVICES
from services.bootstrap.nats_permissions import SYSTEM_USER, build_system_permissions, list_forbidden_requests
from services.bootstrap.server_config import build_permissions_by_user, render_server_config
from tests.bootstrap_actors import make_server_config
from tests.builders import STREAM_ID, make_leading
from tests.bus_actors import MAX_BYTES, run_during
from tests.contract.interface_snapshot import assert_unchanged
from tests.contract.nats_recorder import NatsRecorder

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PREFIX = "talosccm.v1.flow.enriched.node."
EVENT = events.encode(
    events.EnrichedNodeGone(stream_id=STREAM_ID, observed_sequence=1, name="acked", uid="u")
)


async def a_bus(recorder: NatsRecorder, service: str) -> NatsBus:
    return await NatsBus.connect((f"nats://127.0.0.1:{recorder.port}",), service=service, clock=lambda: NOW)


def recorded(recorder: NatsRecorder) -> dict[str, Any]:
    """Everything that the server received."""
    return {
        "connect": recorder.greetings[0],
        "subscriptions": sorted(recorder.heard),
        "messages": recorder.sent,
    }


async def test_what_is_sent_to_provision_publish_read_and_describe_is_unchanged():
    async with NatsRecorder.start() as recorder:
        bus = await a_bus(recorder, "watcher")
        await bus.provision(DURABLES, max_bytes=MAX_BYTES)
        await bus.publish(make_leading(), expected_sequence=4, ttl_seconds=12, headers=TRACE)
        await bus.publish(events.SnapshotComplete(stream_id=STREAM_ID, epoch=1, nodes=0))
        await bus.get_last("talosccm.v1.flow.leading")
        await bus.stats()
        async with bus.headroom(make_leading()):
            pass
        await bus.close()
    assert_unchanged("nats-provision", recorded(recorder))


async def test_what_is_sent_to_consume_and_to_settle_is_unchanged():
    names = ("acked", "nacked", "at-once", "dead", "long")
    async with NatsRecorder.start(*((PREFIX + name, EVENT) for name in names)) as recorder:
        bus = await a_bus(recorder, "labeler")
        await bus.provision(DURABLES, max_bytes=MAX_BYTES)

        async def handle(message: Message) -> Disposition:
            name = message.subject.removeprefix(PREFIX)
            if name == "long":
                await recorder.until("+WPI")
            verdicts: dict[str, Disposition] = {
                "nacked": Nak(1.5, "later"),
                "at-once": Nak(0.0, "again"),
                "dead": Reject("cannot be read"),
            }
            return verdicts.get(name, Ack())

        durable = msgspec.structs.replace(DURABLES[0], ack_wait_seconds=0.3)
        async with run_during(bus.consume(durable, handle, in_flight=64)):
            for body in ('-NAK {"delay":1500000000}', "-NAK", "+WPI"):
                await recorder.until(body)
            async with asyncio.timeout(20):
                while sum({"+ACK"} <= bodies(sent) for sent in recorder.sent.values()) < 3:
                    recorder.arrived.clear()
                    await recorder.arrived.wait()
        await bus.close()
    settled = {
        subject: sorted(bodies(messages) - {"+WPI"})  # how often a handler is marked depends on time
        for subject, messages in recorder.sent.items()
        if subject.startswith("$JS.ACK.")
    }
    others = {subject: recorder.sent[subject] for subject in recorder.sent if ".CREATE." not in subject}
    assert_unchanged("nats-consume", recorded(recorder) | {"messages": others | settled})


def bodies(messages: list[Any]) -> set[str]:
    return {message["body"] for message in messages}


async def test_what_is_sent_to_follow_is_unchanged():
    class Followed:
        def __init__(self) -> None:
            self.ready = asyncio.Event()

        def start_replay(self, position: StreamPosition) -> None: ...
        def apply(self, message: Message) -> None: ...
        def mark_caught_up(self) -> None: ...
        def mark_disconnected(self, reason: str) -> None: ...

        def finish_replay(self) -> None:
            self.ready.set()

    async with NatsRecorder.start() as recorder:
        bus = await a_bus(recorder, "ipam")
        await bus.provision((), max_bytes=MAX_BYTES)
        follower = Followed()
        async with run_during(bus.follow("ipam", "talosccm.v1.flow.>", follower)):
            async with asyncio.timeout(20):
                await follower.ready.wait()
                while not any(".MSG.NEXT." in subject for subject in recorder.sent):
                    recorder.arrived.clear()
                    await recorder.arrived.wait()
        await bus.close()
    assert_unchanged("nats-follow", recorded(recorder))


async def test_what_is_sent_to_reload_a_server_is_unchanged():
    async with NatsRecorder.start() as recorder:
        await reload_server(NatsAccess(servers=(f"nats://127.0.0.1:{recorder.port}",), service=SYSTEM_USER))
    assert_unchanged("nats-reload", recorded(recorder))


def test_stream_durables_and_followers_are_unchanged():
    def durable(each: Durable) -> Any:
        return {"dead letters of": each.service, "configuration": durable_config(each)}

    assert_unchanged(
        "nats-stream",
        {
            "stream": stream_config(MAX_BYTES),
            "stream on three servers": stream_config(MAX_BYTES, replicas=3),
            "durables": {each.name: durable(each) for each in DURABLES},
            "bus in memory": {
                "seconds that a message lasts": MAX_MESSAGE_AGE.total_seconds(),
                "takes a name with dots": subject_matcher(DURABLES[0].filter)(f"{PREFIX}a.b"),
            },
        },
    )


def test_what_each_service_consumes_publishes_and_owns_is_unchanged():
    def right(rule: PolicyRule) -> Any:
        return {
            "group": rule.group,
            "resource": rule.resource,
            "verbs": rule.verbs,
            "names": rule.resource_names,
            "namespace": rule.namespace,
        }

    def place(wiring: ServiceSpec) -> Any:
        return {
            "durables": [each.name for each in wiring.durables],
            "follows": wiring.follows,
            "publishes": wiring.publishes,
            "owns": wiring.owns,
            "provisions the stream": wiring.provisions_stream,
            "runs by default": wiring.runs_by_default,
            "rights in Kubernetes": [right(rule) for rule in wiring.policy_rules],
            "secrets": wiring.secrets,
        }

    assert_unchanged(
        "services-and-rights",
        {"reader": READER_USER} | {wiring.service: place(wiring) for wiring in SERVICES},
    )


def test_users_and_their_rights_are_unchanged():
    users = build_permissions_by_user() | {SYSTEM_USER: build_system_permissions()}
    rights = {
        user: {
            "publish": permissions.allow_publish,
            "deny": permissions.deny_publish,
            "subscribe": permissions.allow_subscribe,
        }
        for user, permissions in users.items()
    }
    assert_unchanged("nats-rights", {"users": rights, "nobody": list_forbidden_requests()})


def test_the_configuration_of_a_server_is_unchanged():
    def config(**changes: Any) -> list[str]:
        server = make_server_config(name="one", files_dir=PurePosixPath("/etc/nats-generated"))
        keys = {user: f"KEY-OF-{user}" for user in (*build_permissions_by_user(), SYSTEM_USER)}
        text = render_server_config(msgspec.structs.replace(server, **changes), keys)
        return [line for line in text.splitlines() if not line.lstrip().startswith("#")]

    assert_unchanged(
        "nats-server", {"alone": config(), "one of two": config(monitor_port=0, routes=("a.nats", "b.nats"))}
    )
