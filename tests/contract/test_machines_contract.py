"""What every set of simulated Talos machines must do: the wire contract of COSI and the routing of apid.

The suite knows the machines only through their client and their sockets, so that another implementation is
one more entry in `IMPLEMENTATIONS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated

from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.machine_fleet import (
    Address,
    MachineFleet,
    SimMachineFacts,
    make_machine,
)
from libs.testbed.pki import TalosPki
from tests.contract.cosi_wire import (
    BOOTSTRAPPED,
    CREATED,
    DESTROYED,
    UPDATED,
    Cosi,
    connected,
    context_for,
    decode,
    encode,
    resource_id,
    spec,
    text,
)

IMPLEMENTATIONS: dict[str, Callable[..., AbstractAsyncContextManager[MachineFleet]]] = {
    "go": MachineFleet.start,
    "python": MachineFleet.start_simulated,
}

PLATFORM = ("runtime", "PlatformMetadatas.talos.dev", "platformmetadata")
ADDRESSES = ("network", "AddressStatuses.net.talos.dev")
SYSTEM = ("hardware", "SystemInformations.hardware.talos.dev", "systeminformation")
NODENAME = ("k8s", "Nodenames.kubernetes.talos.dev", "nodename")
CONTROLLER_MANAGER = (
    "controlplane",
    "ControllerManagerConfigs.kubernetes.talos.dev",
    "kube-controller-manager",
)
NODE = "10.20.0.1"

Start = Callable[..., AbstractAsyncContextManager[MachineFleet]]


@pytest.fixture(scope="module", params=[pytest.param("go", marks=pytest.mark.real_servers), "python"])
def start(request: pytest.FixtureRequest) -> Start:
    return IMPLEMENTATIONS[request.param]


@pytest.fixture(scope="module")
async def talos(start: Start, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MachineFleet]:
    async with start(tmp_path_factory.mktemp("machines")) as machines:
        await machines.put_machines(make_machine("control-1", "10.20.255.1", control_plane=True))
        yield machines


@pytest.fixture(scope="module")
async def cosi(talos: MachineFleet) -> AsyncIterator[Cosi]:
    async with connected(talos.endpoints[0], talos.pki) as client:
        yield client


@pytest.fixture
async def machine(talos: MachineFleet, cosi: Cosi) -> AsyncIterator[SimMachineFacts]:
    """web-1 at NODE: gone afterwards, with its faults."""
    made = make_machine("web-1", NODE, ip6="fd00:20::1", platform="hcloud", external_ips=("203.0.113.7",))
    await talos.put_machines(made)
    await cosi.wait_until_reachable(NODE)
    yield made
    await talos.delete_machines("web-1")


class TestWhatAMachineSays:
    async def test_a_machine_that_takes_another_s_address_answers_there_in_its_place(
        self, talos: MachineFleet, machine: SimMachineFacts, cosi: Cosi
    ):
        await talos.put_machines(make_machine("web-9", NODE))
        await cosi.wait_until_reachable(NODE)
        try:
            assert text(decode(spec(await cosi.get(NODE, *NODENAME))), 1) == "web-9"
            assert text(decode(spec(await cosi.get("fd00:20::1", *NODENAME))), 1) == "web-1", (
                "where no other machine is"
            )
        finally:
            await talos.delete_machines("web-9")
        with pytest.raises(GRPCError) as gone:
            await cosi.get(NODE, *NODENAME)
        assert gone.value.status is Status.UNAVAILABLE

    async def test_a_known_type_without_resources_is_an_empty_list(
        self, machine: SimMachineFacts, cosi: Cosi
    ):
        assert await cosi.list(NODE, "cluster", "Members.cluster.talos.dev") == []

    async def test_only_a_control_plane_has_the_cluster_cidrs(self, machine: SimMachineFacts, cosi: Cosi):
        config = decode(spec(await cosi.get("10.20.255.1", *CONTROLLER_MANAGER)))
        assert config[4] == [b"10.244.0.0/16", b"fd00:10:244::/56"]
        with pytest.raises(GRPCError) as refused:
            await cosi.get(NODE, *CONTROLLER_MANAGER)
        assert refused.value.status is Status.NOT_FOUND

    async def test_a_container_has_no_system_information(self, talos: MachineFleet, cosi: Cosi):
        await talos.put_machines(make_machine("box-1", "10.20.0.9", platform="container"))
        assert text(decode(spec(await cosi.get("10.20.0.9", *PLATFORM))), 1) == "container"
        with pytest.raises(GRPCError, match="doesn't exist") as refused:
            await cosi.get("10.20.0.9", *SYSTEM)
        assert refused.value.status is Status.NOT_FOUND
        await talos.delete_machines("box-1")

    async def test_a_list_can_be_narrowed_to_ids_that_match(self, machine: SimMachineFacts, cosi: Cosi):
        on_eth0 = await cosi.list(NODE, *ADDRESSES, options=encode((2, encode((1, "^e.h")))))
        assert [resource_id(each) for each in on_eth0] == ["eth0/10.20.0.1/24", "eth0/fd00:20::1/64"]

    @pytest.mark.real_only
    async def test_a_pattern_cannot_look_ahead(self, machine: SimMachineFacts, cosi: Cosi):
        with pytest.raises(GRPCError, match="failed to compile regexp") as refused:
            await cosi.list(NODE, *ADDRESSES, options=encode((2, encode((1, "^(?!kube-ipvs)")))))
        assert refused.value.status is Status.INVALID_ARGUMENT

    async def test_version_answers_for_the_machine_that_was_asked(self, machine: SimMachineFacts, cosi: Cosi):
        answer = decode(await cosi.call("/machine.MachineService/Version", b"", NODE))
        (one,) = answer[1]
        assert text(decode(decode(one)[2][0]), 1) == machine.talos_version
        assert text(decode(decode(one)[3][0]), 1) == "hcloud"


class TestRouting:
    async def test_without_a_node_header_the_first_control_plane_answers(
        self, machine: SimMachineFacts, cosi: Cosi
    ):
        assert text(decode(spec(await cosi.get(None, *NODENAME))), 1) == "control-1"

    async def test_what_a_machine_claims_does_not_change_where_the_network_finds_it(
        self, talos: MachineFleet, machine: SimMachineFacts, cosi: Cosi
    ):
        liar = make_machine("liar", "10.20.0.66", addresses=(Address(address=f"{NODE}/24", local=NODE),))
        await talos.put_machines(liar)
        assert text(decode(spec(await cosi.get(NODE, *NODENAME))), 1) == "web-1"
        assert text(decode(spec(await cosi.get("10.20.0.66", *NODENAME))), 1) == "liar"
        await talos.delete_machines("liar")

    @pytest.mark.parametrize(
        ("node", "status", "words"),
        [
            ("10.99.0.1", Status.UNAVAILABLE, "dial tcp 10.99.0.1:50000: connect: connection refused"),
            ("fd00:99::1", Status.UNAVAILABLE, r"dial tcp \[fd00:99::1\]:50000"),
            pytest.param(
                "10.20.0.1:50000",
                Status.INTERNAL,
                'invalid target "10.20.0.1:50000"',
                marks=pytest.mark.real_only,
            ),
        ],
    )
    async def test_a_target_that_leads_nowhere_is_told_apart(
        self, machine: SimMachineFacts, cosi: Cosi, node: str, status: Status, words: str
    ):
        with pytest.raises(GRPCError, match=words) as refused:
            await cosi.get(node, *PLATFORM)
        assert refused.value.status is status


@pytest.mark.real_only
class TestAccess:
    @pytest.mark.parametrize(
        ("namespace", "kind", "words"),
        [
            (
                "runtime",
                "BootIDs.runtime.talos.dev",
                'resource type "BootIDs.runtime.talos.dev" is not supported',
            ),
            ("no-such", PLATFORM[1], 'namespace "no-such" is not supported'),
            ("", PLATFORM[1], 'namespace "" is not supported'),
            ("config", "MachineConfigs.config.talos.dev", "not authorized"),
            ("k8s", "KubeletSpecs.kubernetes.talos.dev", "not authorized"),
        ],
    )
    async def test_what_a_reader_may_not_see(
        self, machine: SimMachineFacts, cosi: Cosi, namespace: str, kind: str, words: str
    ):
        with pytest.raises(GRPCError, match=words) as got:
            await cosi.get(NODE, namespace, kind, "any")
        with pytest.raises(GRPCError, match=words) as listed:
            await cosi.list(NODE, namespace, kind)
        with pytest.raises(GRPCError, match=words) as watched:
            async with cosi.watch(NODE, namespace, kind):
                pass
        assert {e.value.status for e in (got, listed, watched)} == {Status.PERMISSION_DENIED}

    async def test_a_reader_cannot_write(self, machine: SimMachineFacts, cosi: Cosi):
        with pytest.raises(GRPCError, match="not authorized"):
            await cosi.call(
                "/cosi.resource.State/Destroy", encode((1, "k8s"), (2, NODENAME[1]), (3, "nodename")), NODE
            )

    async def test_a_role_that_may_not_read_is_not_authorized(
        self, talos: MachineFleet, machine: SimMachineFacts
    ):
        async with connected(talos.endpoints[0], talos.pki, roles=("os:etcd:backup",)) as backup:
            with pytest.raises(GRPCError, match="not authorized") as refused:
                await backup.get(NODE, *PLATFORM)
        assert refused.value.status is Status.PERMISSION_DENIED


class TestWatching:
    async def test_a_resource_watch_of_what_does_not_exist_begins_with_a_tombstone(
        self, talos: MachineFleet, machine: SimMachineFacts, cosi: Cosi
    ):
        await talos.change_machine(machine.id, system_information=None)
        async with cosi.watch(NODE, *SYSTEM[:2], name=SYSTEM[2]) as watch:
            kind, tombstone, _ = await watch.event()
            assert (kind, resource_id(tombstone), spec(tombstone)) == (DESTROYED, SYSTEM[2], b"")
            await talos.put_machines(machine)
            assert (await watch.event())[0] == CREATED


class TestConnections:
    async def test_calls_one_after_another_do_not_wait_for_acknowledgements(
        self, machine: SimMachineFacts, cosi: Cosi
    ):
        # Nagle's algorithm would make each wait for a delayed acknowledgement: 40 ms on Linux
        clock, quick = asyncio.get_running_loop().time, 0
        for _ in range(1000):  # on a busy machine most wait for other things
            began = clock()
            await cosi.get(NODE, *PLATFORM)
            quick += clock() - began < 0.035
            if quick > 20:  # Linux acknowledges the first segments of a connection at once
                return
        pytest.fail(f"{quick} of 1000 calls took less than 35 ms")

    async def test_hundreds_of_watches_fit_into_one_connection(
        self, talos: MachineFleet, machine: SimMachineFacts, cosi: Cosi
    ):
        async with asyncio.timeout(HANG_SECONDS), contextlib.AsyncExitStack() as stack:
            opened = (stack.enter_async_context(cosi.watch(NODE, *NODENAME[:2])) for _ in range(250))
            watches = await asyncio.gather(*opened)
            await talos.change_machine(machine.id, name="web-many")
            for watch in watches:
                assert [(await watch.event())[0] for _ in range(3)] == [CREATED, BOOTSTRAPPED, UPDATED]

    @pytest.mark.real_only
    async def test_a_client_that_pings_too_often_is_sent_away(self, talos: MachineFleet):
        client = talos.pki.client(["os:reader"], lifetime=timedelta(hours=1))
        host, _, port = talos.endpoints[0].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context_for(talos.pki, client))
        http2 = H2Connection()
        http2.initiate_connection()
        for number in range(4):
            http2.ping(number.to_bytes(8))
        writer.write(http2.data_to_send())
        goodbye: list[ConnectionTerminated] = []
        async with asyncio.timeout(HANG_SECONDS):
            while not goodbye and (data := await reader.read(65536)):
                goodbye += [e for e in http2.receive_data(data) if isinstance(e, ConnectionTerminated)]
        writer.close()
        assert [(e.error_code, e.additional_data) for e in goodbye] == [
            (ErrorCodes.ENHANCE_YOUR_CALM, b"too_many_pings")
        ]

    async def test_a_client_without_a_good_certificate_gets_no_answer(
        self, talos: MachineFleet, machine: SimMachineFacts
    ):
        hour = timedelta(hours=1)
        expired = talos.pki.client(["os:reader"], lifetime=hour, issued_at=datetime.now(UTC) - 2 * hour)
        for_servers = talos.pki.authority.issue_server(["10.0.0.1"])
        for pair in (expired, for_servers):
            async with connected(talos.endpoints[0], talos.pki, pair) as client:
                with pytest.raises((StreamTerminatedError, ConnectionError)):
                    await client.get(NODE, *PLATFORM)

    async def test_the_server_speaks_tls_only_to_who_verifies_it(self, talos: MachineFleet, tmp_path: Path):
        other = TalosPki(tmp_path, ["127.0.0.1"])
        host, _, port = talos.endpoints[0].rpartition(":")
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection(host, int(port), ssl=context_for(other, None))
