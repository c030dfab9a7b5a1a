"""NATS as the bootstrap configures it: each user can do its part, and nothing else."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.nats.connection import Connection
from libs.common.bus.protocol import BusError, BusHooks, UnreadablePayload
from libs.common.contract.events import encode
from libs.common.contract.services import CONSOLE, DURABLES, NAMED_SERVICES, SERVICES, expand_cloud
from libs.common.contract.subjects import (
    ENRICHED_NODE,
    FLOW,
    INSTANCE_REPORTS,
    OBSERVED_NODE,
    STREAM,
    subject_of,
)
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.clouds.hcloud.server import SimHcloud, SimHcloudServer
from libs.testbed.kubelets import SimKubelet
from libs.testbed.machine_fleet import make_machine
from services.bootstrap.resource_names import ResourceNames
from services.cloud.service import CloudService
from services.cloud.settings import CloudSettings
from tests.bootstrap_actors import BootstrapInstallation, install_bootstrap
from tests.builders import make_csr_enriched, make_node, make_request
from tests.bus_actors import MAX_BYTES, Recorder, make_event, run_during, wait_for_value, wait_until
from tests.integration.conftest import ConnectBus
from tests.integration.service_cluster import ServiceCluster
from tests.service_flow import ServiceFlow, make_dependencies

ACCOUNTS = ("prod", "staging")
SPECS = (*SERVICES, *map(expand_cloud, ACCOUNTS))
USERS = (*ResourceNames(namespace="n", prefix="p", cloud_accounts=ACCOUNTS).users, "system")
POD_CIDRS = [
    "--allocate-node-cidrs",
    "--cluster-cidr=10.244.0.0/16",
    "--service-cluster-ip-range=10.96.0.0/12",
]
COUNT = 3
DECISIONS = "talosccm.v1.decided.>"


@pytest.fixture(scope="module")
async def nats_as_installed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BootstrapInstallation]:
    """Shared by all tests: no user can change its permissions."""
    async with install_bootstrap(
        tmp_path_factory.mktemp("nats-as-installed"), flags=[f"--cloud-accounts={','.join(ACCOUNTS)}"]
    ) as made:
        yield made


@pytest.fixture
async def watcher(nats_as_installed: BootstrapInstallation, connect_bus: ConnectBus) -> NatsBus:
    """It has provisioned the stream and all durables."""
    bus = await connect_bus("watcher", **nats_as_installed.bus_options("watcher"))
    await bus.provision(DURABLES, max_bytes=MAX_BYTES)
    return bus


@asynccontextmanager
async def connected(
    made: BootstrapInstallation, user: str, on_violation: Callable[[str], None] = lambda text: None
) -> AsyncIterator[Connection]:
    """A connection with the key of that user."""
    access = made.nats_access(user)
    connection = await Connection.open(
        access, access.servers[0], seconds=HANG_SECONDS, on_violation=on_violation
    )
    try:
        yield connection
    finally:
        await connection.abort("done")


# ---- everything that is needed is there


async def test_every_service_does_its_work_with_its_own_key_and_is_refused_nothing(
    nats_as_installed: BootstrapInstallation, simulated_cluster: ServiceCluster
):
    cluster = simulated_cluster
    services = await cluster.serve(
        nats_url=nats_as_installed.url,
        flags=POD_CIDRS,
        own_flags={
            spec.service: [
                *nats_as_installed.nats_flags(spec.service),
                *(["--console-port=0"] if spec == CONSOLE else []),
            ]
            for spec in NAMED_SERVICES
        },
        wirings=NAMED_SERVICES,
    )
    await join_with_certificates(cluster, first=1)
    await wait_for_pod_cidrs(cluster, COUNT)
    await nats_as_installed.server.wipe()  # stream and durables are created again, with the same rights
    await join_with_certificates(cluster, first=1 + COUNT)
    await cluster.kubelets.delete_node("rights-1")
    await wait_for_pod_cidrs(cluster, 2 * COUNT - 1)
    await services.wait_until_ready()
    metrics_page = await services.fetch_page("watcher", "/metrics")
    assert 'talosccm_queue_pending{durable="labeler-nodes"}' in metrics_page
    for wiring in NAMED_SERVICES:
        page = await services.fetch_page(wiring.service, "/metrics")
        assert "talosccm_nats_permission_violations_total 0.0" in page, wiring.service
        assert f'talosccm_nats_connected{{service="{wiring.service}"}} 1.0' in page
    assert "Violation" not in nats_as_installed.server.child.log.read_text()


async def join_with_certificates(cluster: ServiceCluster, *, first: int) -> None:
    """COUNT machines, whose kubelets join and get the certificates that they request."""
    some = [make_machine(f"rights-{n}", f"10.241.0.{n}") for n in range(first, first + COUNT)]
    await cluster.join(*some)
    kubelets = cluster.kubelets
    names = [await kubelets.request_certificate(SimKubelet.of_machine(machine)) for machine in some]
    for name in names:
        assert (await kubelets.wait_for_outcome(name)).certificate


async def wait_for_pod_cidrs(cluster: ServiceCluster, count: int) -> None:
    """Return once that many Nodes are initialized and each has pod CIDRs."""
    await cluster.wait_until_initialized(count)

    async def have_pod_cidrs() -> bool:
        return all(node["spec"].get("podCIDRs") for node in await cluster.list_nodes())

    await wait_until(have_pod_cidrs, f"{count} Nodes have pod CIDRs")


@pytest.mark.usefixtures("watcher")
async def test_who_only_looks_follows_the_flow_and_reads_what_was_decided(
    nats_as_installed: BootstrapInstallation, connect_bus: ConnectBus
):
    metadata = await connect_bus("metadata", **nats_as_installed.bus_options("metadata"))
    word = make_event("looked-at")
    await metadata.publish(word)
    violations: list[str] = []
    hooks = BusHooks(permission_violation=violations.append)
    reader = await connect_bus("reader", **nats_as_installed.bus_options("reader"), hooks=hooks)
    recorder = Recorder()
    async with run_during(reader.follow("flow", f"{FLOW}.>", recorder)):
        await wait_until(lambda: subject_of(word) in recorder.subjects)
    assert violations == []


async def test_the_watcher_and_who_only_looks_see_how_the_queues_stand(
    nats_as_installed: BootstrapInstallation, watcher: NatsBus, connect_bus: ConnectBus
):
    for user in ("watcher", "reader", "console"):
        bus = await connect_bus(user, **nats_as_installed.bus_options(user))
        looked = await bus.stats()
        assert [queue.name for queue in looked.consumers] == [durable.name for durable in DURABLES], user
    labeler = await connect_bus("labeler", **nats_as_installed.bus_options("labeler"))
    with pytest.raises(BusError, match=r"(?i)permissions violation"):
        await labeler.stats()


async def test_a_restarted_account_reports_again_with_its_key_and_lifecycle_reads_it(
    nats_as_installed: BootstrapInstallation, connect_bus: ConnectBus, tmp_path: Path
):
    violations: list[str] = []
    hooks = BusHooks(permission_violation=violations.append)
    flow = ServiceFlow(await connect_bus("watcher", **nats_as_installed.bus_options("watcher")))
    lifecycle = await connect_bus("lifecycle", **nats_as_installed.bus_options("lifecycle"), hooks=hooks)
    recorder, token = Recorder(), tmp_path / "token"
    token.write_text("a" * 64)
    async with SimHcloudServer.start(SimHcloud()) as cloud:
        server = cloud.cloud.add_project("a" * 64).add_server("web-1")
        await flow.start(make_node("web-1", uid="u", provider_id=f"hcloud://{server}"))
        settings = CloudSettings(
            accounts=("hcloud/prod",), credential_file=token, endpoint=cloud.endpoint, step_seconds=0.05
        )

        async def has_reported(count: int) -> bool:
            await flow.publish_leading()  # on a busy machine, the test outlives one
            return len(recorder.messages) >= count

        async with run_during(lifecycle.follow("lifecycle", INSTANCE_REPORTS, recorder)):
            for count in (1, 2):
                bus = await connect_bus(
                    "cloud-prod", **nats_as_installed.bus_options("cloud-prod"), hooks=hooks
                )
                async with run_during(CloudService(make_dependencies(bus), settings).run()):
                    await wait_until(partial(has_reported, count))
    assert recorder.subjects == {"talosccm.v1.cloud.prod.instance.web-1"}
    assert violations == []


# ---- nothing else is


def publications(user: str) -> set[str]:
    """What a user could say and must not."""
    foreign = {
        filter_subject.replace(">", "x")
        for wiring in SPECS
        if wiring.service != user
        for filter_subject in wiring.publishes
    }
    return (foreign | _of_the_stream() | _of_durables() | _of_the_server(user)) - _granted(user)


def _of_the_stream() -> set[str]:
    verbs = (
        "CREATE",
        "UPDATE",
        "DELETE",
        "PURGE",
        "SNAPSHOT",
        "RESTORE",
        "MSG.GET",
        "MSG.DELETE",
        "LEADER.STEPDOWN",
    )
    own = {f"$JS.API.STREAM.{verb}.{STREAM}" for verb in verbs}
    others = {f"$JS.API.STREAM.{verb}.ANOTHER" for verb in ("CREATE", "DELETE", "INFO")}
    lists = {"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", f"$JS.API.CONSUMER.LIST.{STREAM}"}
    reading = {f"$JS.API.DIRECT.GET.{STREAM}", f"$JS.API.DIRECT.GET.{STREAM}.talosccm.v1.decided.x.node.x"}
    return own | others | lists | reading


def _of_durables() -> set[str]:
    api, found = "$JS.API.CONSUMER", set()
    for durable in DURABLES:
        name = durable.name
        found |= {
            f"{api}.{verb}.{STREAM}.{name}" for verb in ("INFO", "DELETE", "MSG.NEXT", "CREATE", "PAUSE")
        }
        found |= {f"{api}.CREATE.{STREAM}.{name}.{durable.filter}", f"{api}.DURABLE.CREATE.{STREAM}.{name}"}
        found |= {f"{api}.LEADER.STEPDOWN.{STREAM}.{name}", f"$JS.ACK.{STREAM}.{name}.1.1.1.1.0"}
    everything = {
        f"{api}.CREATE.{STREAM}",
        f"{api}.CREATE.{STREAM}.x",
        f"{api}.CREATE.{STREAM}.x.talosccm.v1.>",
    }
    return found | everything | {f"{api}.CREATE.{STREAM}.x.talosccm.v1.decided.>"}


def _of_the_server(user: str) -> set[str]:
    return {
        "$SYS.REQ.SERVER.PING",
        "$SYS.REQ.SERVER.X.RELOAD",
        "$SYS.REQ.SERVER.X.KICK",
        "$SYS.REQ.ACCOUNT.TALOSCCM.INFO",
        "_INBOX_watcher.x" if user != "watcher" else "_INBOX_metadata.x",
        "talosccm.v1.flow",
        "talosccm.v2.flow.snapshot",
        "anything",
    }


def _granted(user: str) -> set[str]:
    """The exceptions, written down here by hand: each is a decision."""
    api = "$JS.API.CONSUMER"
    if user == "watcher":  # stream and durables are its own; they are also consumers that it could follow
        makes = {
            f"{api}.{verb}.{STREAM}.{d.name}" for d in DURABLES for verb in ("INFO", "DELETE", "MSG.NEXT")
        }
        makes |= {f"{api}.CREATE.{STREAM}.{d.name}.{d.filter}" for d in DURABLES}
        return makes | {f"$JS.API.STREAM.{verb}.{STREAM}" for verb in ("CREATE", "UPDATE")}
    if user == "reader":
        looks = {f"{api}.INFO.{STREAM}.{d.name}" for d in DURABLES}
        return looks | {f"$JS.API.DIRECT.GET.{STREAM}.talosccm.v1.decided.x.node.x"}
    if user == "console":  # it follows everything, decisions included
        followed = {f"{api}.CREATE.{STREAM}.x.talosccm.v1.{each}>" for each in ("", "decided.")}
        return followed | {f"{api}.INFO.{STREAM}.{d.name}" for d in DURABLES}
    if user == "system":
        return {"$SYS.REQ.SERVER.X.RELOAD"}
    own = [durable.name for durable in DURABLES if durable.service == user]
    return {f"{api}.{verb}.{STREAM}.{name}" for name in own for verb in ("INFO", "MSG.NEXT")} | {
        f"$JS.ACK.{STREAM}.{name}.1.1.1.1.0" for name in own
    }


def subscriptions(user: str) -> set[str]:
    """What a user could listen to and must not."""
    inboxes = {f"_INBOX_{other}.>" for other in USERS if other != user}
    return inboxes | {
        ">",
        "*",
        "_INBOX.>",
        "*.>",
        f"{FLOW}.>",
        f"{OBSERVED_NODE}.x",
        "$JS.>",
        "$SYS.>",
        "$JS.EVENT.>",
    }


@pytest.mark.parametrize("user", USERS)
async def test_whatever_is_not_a_users_to_say_or_to_hear_is_refused(
    nats_as_installed: BootstrapInstallation, user: str
):
    refused: list[str] = []
    own = {f.replace(">", "x") for w in SPECS if w.service == user for f in w.publishes} | _granted(user)
    async with connected(nats_as_installed, user, refused.append) as client:
        unsaid = {subject for subject in publications(user) if await says(client, refused, subject)}
        unheard = {subject for subject in subscriptions(user) if await hears(client, refused, subject)}
        denied = {subject for subject in own if not await says(client, refused, subject)}
    assert unsaid == set()
    assert unheard == set()
    assert denied == set()


async def says(client: Connection, refused: list[str], subject: str) -> bool:
    """Whether the server takes that publication; its refusal comes before the answer to a ping."""
    refused.clear()
    await client.send(subject)
    await client.round_trip(HANG_SECONDS)
    # The forbidden request under another name; no other message was published meanwhile.
    names = (subject.lower(), "unheard")
    return not any(f'publish to "{name}"' in text for text in refused for name in names)


async def hears(client: Connection, refused: list[str], subject: str) -> bool:
    """Whether the server takes that subscription."""
    refused.clear()
    subscription = await client._client.subscribe(subject)
    await client.round_trip(HANG_SECONDS)
    taken = not any(f'subscription to "{subject.lower()}"' in text for text in refused)
    await subscription.unsubscribe()
    return taken


@pytest.mark.parametrize(
    "filters", [{"filter_subject": DECISIONS}, {"filter_subjects": [f"{FLOW}.>", DECISIONS]}, {}]
)
@pytest.mark.usefixtures("watcher")
async def test_a_consumer_hears_no_more_than_the_subject_by_which_it_was_asked_for(
    nats_as_installed: BootstrapInstallation, filters: dict[str, Any]
):
    config = {"name": "stolen", "ack_policy": "none", **filters}
    request = msgspec.json.encode({"stream_name": STREAM, "config": config})
    subject = f"$JS.API.CONSUMER.CREATE.{STREAM}.stolen.{FLOW}.>"
    async with connected(nats_as_installed, "csr") as client:
        answer = msgspec.json.decode((await client.request(subject, request, seconds=HANG_SECONDS)).data)
    assert answer["error"]["code"] == 400


@pytest.mark.parametrize("reading", ["multi_last", "next_by_subj", "last_by_subj"])
@pytest.mark.usefixtures("watcher")
async def test_no_body_of_a_request_widens_what_its_subject_lets_one_read(
    nats_as_installed: BootstrapInstallation, reading: str
):
    own = f"{DECISIONS.removesuffix('.>')}.labeler.node.web-1"
    body = msgspec.json.encode({reading: [own] if reading == "multi_last" else own, "seq": 1})
    async with connected(nats_as_installed, "labeler") as client:
        assert (await client.request(own, b"forged", seconds=HANG_SECONDS)).data
        answer = await client.request(
            f"$JS.API.DIRECT.GET.{STREAM}.{OBSERVED_NODE}.x", body, seconds=HANG_SECONDS
        )
    assert (answer.status, answer.data) == ("408", b"")


@pytest.mark.parametrize("options", [b"", b'{"no_hdr":true}'], ids=["plain", "without-headers"])
async def test_what_the_server_reads_out_to_another_subject_is_no_message_of_that_subject(
    nats_as_installed: BootstrapInstallation, watcher: NatsBus, connect_bus: ConnectBus, options: bytes
):
    """A reply subject needs no permission: the server writes its answer to whatever subject was named."""
    metadata = await connect_bus("metadata", **nats_as_installed.bus_options("metadata"))
    await metadata.publish(make_event("genuine"))
    reading = f"$JS.API.DIRECT.GET.{STREAM}"
    forged, own = make_csr_enriched(make_request("csr-1")), "talosccm.v1.decided.labeler.csr.csr-1"
    target, other = subject_of(forged), f"{ENRICHED_NODE}.another"
    async with connected(nats_as_installed, "labeler") as thief:
        for subject, payload, reply in (
            (target, encode(forged), ""),
            (own, encode(forged), ""),
            (f"{reading}.{own}", options, target),  # its own message, which it may not read
            (f"{reading}.{ENRICHED_NODE}.genuine", options, other),  # a message about something else
        ):
            await thief.send(subject, payload, reply=reply)
            await thief.round_trip(HANG_SECONDS)
        moved = await wait_for_value(lambda: watcher.get_last(other))
    assert await watcher.get_last(target) is None
    assert isinstance(moved.event, UnreadablePayload), "the message of a subject is about that subject"


@pytest.mark.parametrize("verb", ["DELETE", "PURGE", "LEADER.STEPDOWN"])
async def test_what_nobody_may_ask_the_server_does_not_ask_itself_by_an_answer_to_that_subject(
    nats_as_installed: BootstrapInstallation, connect_bus: ConnectBus, verb: str
):
    watcher = await connect_bus("watcher", **nats_as_installed.bus_options("watcher"))
    first = await watcher.provision(DURABLES, max_bytes=MAX_BYTES)
    metadata = await connect_bus("metadata", **nats_as_installed.bus_options("metadata"))
    word = make_event("stays")
    await metadata.publish(word)
    nothing = f"$JS.API.DIRECT.GET.{STREAM}.{OBSERVED_NODE}.unknown"
    async with connected(nats_as_installed, "reader") as thief:
        await thief.send(nothing, reply=f"$JS.API.STREAM.{verb}.{STREAM}")
        # One after the other: what came before is done.
        for later in (nothing, f"$JS.API.STREAM.INFO.{STREAM}"):
            await thief.request(later, b"", seconds=HANG_SECONDS)
    assert await watcher.provision(DURABLES, max_bytes=MAX_BYTES) == first
    assert await metadata.get_last(subject_of(word)) is not None


async def test_what_somebody_has_the_server_delete_by_its_answer_is_made_anew_and_nobody_is_acknowledged_so(
    nats_as_installed: BootstrapInstallation, watcher: NatsBus
):
    """A reply subject needs no permission, so even the weakest key can have a durable deleted.

    See docs/decisions/0025-nats-keys-and-measure_certificates.md.
    """
    refused = list[str]()
    nothing = f"$JS.API.DIRECT.GET.{STREAM}.{OBSERVED_NODE}.unknown"
    name = DURABLES[0].name

    async def there() -> bool:
        info = await thief.request(f"$JS.API.CONSUMER.INFO.{STREAM}.{name}", b"", seconds=HANG_SECONDS)
        return b'"error"' not in info.data

    async def gone() -> bool:
        return not await there()

    async def provisioned_again() -> bool:
        try:
            await watcher.provision(DURABLES, max_bytes=MAX_BYTES)
        except BusError as error:
            if "error creating store for consumer" not in str(error):
                raise
            return False  # its files are still being deleted; the watcher tries again, too
        return True

    async with connected(nats_as_installed, "reader", refused.append) as thief:
        await thief.send(nothing, reply=f"$JS.ACK.{STREAM}.csr-requests.1.1.1.1.0")
        await thief.round_trip(HANG_SECONDS)
        assert any("with reply" in text for text in refused)
        await thief.send(nothing, reply=f"$JS.API.CONSUMER.DELETE.{STREAM}.{name}")
        await wait_until(gone, "the durable was deleted")
        await wait_until(provisioned_again)
        await wait_until(there, "it is created again")
