"""Faults of an observed cluster, one per alert; each lasts as long as its context."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from libs.common.contract.services import LIFECYCLE_LEASE_NAME, WATCHER, WATCHER_LEASE_NAME
from libs.common.contract.subjects import DECIDED, ENRICHED_NODE
from libs.testbed.kubelet_node import build_registered_node
from libs.testbed.kubelets import MERGE, SimKubelet
from libs.testbed.machine_fleet import make_machine
from libs.testbed.service_permissions import get_user_name
from libs.testbed.sim_apiserver.faults import TooManyRequestsFault
from services.bootstrap.certificates import AUTHORITY_LIFETIME, make_authority
from services.bootstrap.resource_names import CERTIFICATE, KEY
from tests.bus_actors import run_during
from tests.integration.processes import a_process
from tests.observe.clouds.cloud_account import CloudAccount, run_cloud_account
from tests.observe.observed_cluster import BLOCKS, CONFIG, WORKERS, ObservedCluster, gone

_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
_FILLING: Final = [f"filling-{n}" for n in range(BLOCKS - 1 - (WORKERS + 1))]  # leaves one block
_TOO_MANY: Final = ["filling-last", "too-many"]
_SERVERS: Final = [f"server-{n}" for n in range(4)]  # above the threshold of TalosCCMCloudInstancesGone
_MEGABYTE: Final = 1_000_000


@asynccontextmanager
async def no_watcher(watched: ObservedCluster) -> AsyncIterator[None]:
    """The only watcher dies."""
    await watched.services.kill("watcher")
    yield
    await watched.kubelets.request(
        "DELETE", f"{_LEASES}/{WATCHER_LEASE_NAME}"
    )  # otherwise the new watcher waits until the Lease expires
    watched.services.restart("watcher")
    await watched.services.wait_until_ready()


@asynccontextmanager
async def no_nats(watched: ObservedCluster) -> AsyncIterator[None]:
    await watched.bus.server.kill()
    yield
    await watched.bus.server.restart()
    await watched.services.wait_until_ready()


@asynccontextmanager
async def rejected_watch(watched: ObservedCluster) -> AsyncIterator[None]:
    """All connections break, and the API server rejects watches of Nodes from then on."""
    watched.server.faults.inject(TooManyRequestsFault(), verb="watch", resource="nodes")
    await watched.server.stop()
    await watched.server.resume()
    yield
    watched.server.faults.clear()


@asynccontextmanager
async def no_consumer(watched: ObservedCluster) -> AsyncIterator[None]:
    """csr dies while requests wait."""
    await watched.services.kill("csr")
    for n in range(3):
        await watched.ask_for_certificate(f"well-{n}")
    yield
    watched.services.restart("csr")
    await watched.services.wait_until_ready()


@asynccontextmanager
async def hostile_request(watched: ObservedCluster) -> AsyncIterator[None]:
    await watched.ask_for_certificate("well-1", dns=["kubernetes.default.svc"])
    yield


@asynccontextmanager
async def no_signer(watched: ObservedCluster) -> AsyncIterator[None]:
    watched.server.stop_signer()
    await watched.ask_for_certificate("well-2")
    yield
    watched.server.start_signer()


@asynccontextmanager
async def unreadable_message(watched: ObservedCluster) -> AsyncIterator[None]:
    await watched.bus.publish_as("metadata", {f"{ENRICHED_NODE}.unknown": b"\xff{no event"})
    yield  # the dead letter stays until the stream is emptied


@asynccontextmanager
async def flooded_stream(watched: ObservedCluster) -> AsyncIterator[None]:
    """An attacker with labeler's key publishes junk."""
    junk = {f"{DECIDED}.labeler.node.junk-{n}": bytes(_MEGABYTE) for n in range(58)}  # of 64 MiB
    await watched.bus.publish_as("labeler", junk)
    yield
    await watched.bus.server.wipe()  # the fix in its runbook
    await watched.services.wait_until_ready()


@asynccontextmanager
async def wrong_key(watched: ObservedCluster) -> AsyncIterator[None]:
    """A process of csr uses a key that may only read."""
    arguments = [
        f"--nats-url={watched.bus.url}",
        *watched.bus.nats_flags("reader"),
        f"--kubeconfig={watched.server.kubeconfig(get_user_name(WATCHER))}",
        "--bind-address=127.0.0.1",
        "--secure-serving=false",
    ]
    async with a_process(watched.run_dir, "services.csr", *arguments) as process:
        await process.serves("http")
        addresses = watched.addresses()
        watched.prometheus.set_targets(addresses | {"wrong-key": f"127.0.0.1:{process.port}"})
        yield
        watched.prometheus.set_targets(addresses)
        await watched.until_scraped(**{"wrong-key": False})


@asynccontextmanager
async def old_authority(watched: ObservedCluster) -> AsyncIterator[None]:
    """The CA of NATS expires in 300 days."""
    folder = watched.bus.folder("ca")
    before = {name: (folder / name).read_bytes() for name in (CERTIFICATE, KEY)}
    made = make_authority(
        ec.generate_private_key(ec.SECP256R1()),
        name="an old one",
        now=datetime.now(UTC) - AUTHORITY_LIFETIME + timedelta(days=300),
        serial=x509.random_serial_number(),
    )
    (folder / KEY).write_bytes(made.key)
    (folder / CERTIFICATE).write_bytes(made.certificate)
    yield
    for name, content in before.items():
        (folder / name).write_bytes(content)


@asynccontextmanager
async def silent_machine(watched: ObservedCluster) -> AsyncIterator[None]:
    """A Node joins whose machine does not answer."""
    machine = make_machine("silent", "10.240.0.60")
    await watched.machines.put_machines(machine)
    await watched.machines.set_faults(machine.id, unavailable=True)
    await watched.kubelets.join(SimKubelet.of_machine(machine))
    yield
    await gone(watched, "silent")


@asynccontextmanager
async def silent_endpoint(watched: ObservedCluster) -> AsyncIterator[None]:
    """The Talos API does not answer for any machine."""
    await watched.machines.cut_endpoint(0)
    yield
    await watched.machines.restore_endpoint(0)


@asynccontextmanager
async def ending_credential(watched: ObservedCluster) -> AsyncIterator[None]:
    watched.machines.write_talosconfig(watched.talosconfig, lifetime=timedelta(minutes=20))
    yield
    watched.machines.write_talosconfig(watched.talosconfig)


@asynccontextmanager
async def broken_file(watched: ObservedCluster) -> AsyncIterator[None]:
    watched.config.write_text("transformations: 7\n")
    yield
    watched.config.write_text(CONFIG)


@asynccontextmanager
async def almost_full_pool(watched: ObservedCluster) -> AsyncIterator[None]:
    await watched.join(*_FILLING, first=100)
    yield  # `exhausted_pool` deletes these Nodes


@asynccontextmanager
async def exhausted_pool(watched: ObservedCluster) -> AsyncIterator[None]:
    await watched.join(*_TOO_MANY, first=120)
    yield
    await gone(watched, *_TOO_MANY, *_FILLING)


@asynccontextmanager
async def foreign_allocator(watched: ObservedCluster) -> AsyncIterator[None]:
    """A Node joins with a pod CIDR from another allocator."""
    machine = make_machine("foreign", "10.240.0.61")
    await watched.machines.put_machines(machine)
    node = build_registered_node(SimKubelet.of_machine(machine), datetime.now(UTC))
    node["spec"] |= {"podCIDR": "10.99.0.0/24", "podCIDRs": ["10.99.0.0/24"]}
    created = await watched.kubelets.request("POST", "/api/v1/nodes", body=node)
    assert created.status == 201, created
    yield
    await gone(watched, "foreign")


@asynccontextmanager
async def replaced_machine(watched: ObservedCluster) -> AsyncIterator[None]:
    """Another machine answers at a Node's address, and the limit of deletions is 0."""
    await watched.join("replaced", first=62)
    await watched.cluster.until_usable("replaced")
    await watched.cluster.replace("replaced", by="successor")
    yield
    await watched.kubelets.delete_node("replaced")
    await gone(watched, "successor")


@asynccontextmanager
async def _cloud_account(watched: ObservedCluster, **options: Any) -> AsyncIterator[CloudAccount]:
    """A cloud account runs, with four servers, and Prometheus scrapes it."""
    async with run_cloud_account(watched.run_dir, watched.bus, watched.kubelets, **options) as account:
        addresses = watched.addresses()
        watched.prometheus.set_targets(addresses | {"cloud": account.address})
        yield account
        watched.prometheus.set_targets(addresses)
        for name in _SERVERS:
            await watched.kubelets.delete_node(name)
        await watched.until_scraped(cloud=False)


@asynccontextmanager
async def revoked_token(watched: ObservedCluster) -> AsyncIterator[None]:
    """The cloud rejects the token of the account."""
    async with _cloud_account(watched, token="b" * 64) as account:
        await account.join_servers(*_SERVERS)
        yield


@asynccontextmanager
async def greedy_client(watched: ObservedCluster) -> AsyncIterator[None]:
    """Another client of the project uses up its rate limit."""
    async with _cloud_account(watched) as account:
        await account.join_servers(*_SERVERS)
        assert account.project.bucket.take(2900)
        yield


@asynccontextmanager
async def deleted_servers(watched: ObservedCluster) -> AsyncIterator[None]:
    """All servers of the account are deleted in the cloud, while their kubelets still report."""
    async with _cloud_account(watched) as account:
        servers = await account.join_servers(*_SERVERS)
        for server_id in servers:
            account.project.remove("servers", server_id)
        yield


@asynccontextmanager
async def detached_server(watched: ObservedCluster) -> AsyncIterator[None]:
    """The server of a Node is not in the network that has the routes."""
    async with _cloud_account(watched, kubeconfig=watched.server.kubeconfig()) as account:
        server_id = account.project.add_server("detached")
        machine = make_machine("detached", "10.240.0.63", platform="hcloud")
        assert machine.platform is not None
        platform = msgspec.structs.replace(
            machine.platform, instance_id=str(server_id), provider_id=f"hcloud://{server_id}"
        )
        await watched.cluster.join(msgspec.structs.replace(machine, platform=platform))
        yield
        await gone(watched, "detached")


@asynccontextmanager
async def full_network(watched: ObservedCluster) -> AsyncIterator[None]:
    """Another cluster has most routes of the network."""
    async with _cloud_account(watched, kubeconfig=watched.server.kubeconfig()) as account:
        (network,) = account.project.tables["networks"].values()
        network["routes"] += [
            {"destination": f"10.77.{number}.0/24", "gateway": "10.0.1.200"} for number in range(81)
        ]
        await account.join_servers(*_SERVERS)
        yield


@asynccontextmanager
async def stolen_lease(watched: ObservedCluster) -> AsyncIterator[None]:
    """Another process holds the Lease of lifecycle for the whole run."""
    path = f"{_LEASES}/{LIFECYCLE_LEASE_NAME}"
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    held = {"holderIdentity": "another", "leaseDurationSeconds": 600, "renewTime": now, "acquireTime": now}
    taken = await watched.kubelets.request("PATCH", path, body={"spec": held}, content_type=MERGE)
    assert taken.status == 200, taken
    yield
    await watched.kubelets.request("DELETE", path)


@asynccontextmanager
async def starved_process(watched: ObservedCluster) -> AsyncIterator[None]:
    """lifecycle is paused for two thirds of the time."""
    child = watched.services.children["lifecycle"]

    async def starve() -> None:
        try:
            while True:
                child.pause()
                await asyncio.sleep(0.8)
                child.resume()
                await asyncio.sleep(0.4)
        finally:
            child.resume()

    async with run_during(starve()):
        yield


@asynccontextmanager
async def no_targets(watched: ObservedCluster) -> AsyncIterator[None]:
    watched.prometheus.set_targets({})
    yield
    watched.prometheus.set_targets(watched.addresses())


class Fault(NamedTuple):
    """A fault and the alert that it fires."""

    during: Callable[[ObservedCluster], AbstractAsyncContextManager[None]]
    alert: str
