"""What the faults do to servers, links, processes and machines."""

import asyncio
import shutil
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from libs.common.contract.services import DURABLES
from libs.common.contract.subjects import STREAM
from libs.testbed.admission_webhook import WebhookScope
from libs.testbed.child_process import make_directory
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_permissions import ALL_IN_ONE, RBAC
from libs.testbed.service_processes import ServiceProcesses
from libs.testbed.sim_apiserver.faults import ServerFault
from tests.chaos.clocks import set_clock_offset
from tests.chaos.cluster import SECOND, SINGLE_SERVER_MODES, Mode
from tests.chaos.fault import Fault, FaultSite, heal_again
from tests.chaos.links import HEALTHY, Link, LinkState
from tests.chaos.request_filer import persist
from tests.chaos.workload import STEADY

_STOP_SECONDS: Final = 30.0
# faults of different machines may occur together
STOPPED, IMPERSONATED, PARTIAL = STEADY
_PROBES: Final = 3
_PROBE_SECONDS: Final = 2.0  # the chart's liveness probe: every 30 s
# Only requests of the services: Nodes join and operators write as ever.
_WEBHOOK_SCOPE: Final = WebhookScope(
    resources={"": ["nodes/status"], "certificates.k8s.io": ["certificatesigningrequests/approval"]},
    condition="request.userInfo.username.contains('talos-ccm')",
    timeout_seconds=2,
)


async def delete_consumers(site: FaultSite) -> None:
    for durable in DURABLES:
        await site.cluster.nats.call_jetstream(f"CONSUMER.DELETE.{STREAM}.{durable.name}")


async def empty_disks(site: FaultSite) -> None:
    """A server that has failed to write stays without its stream until it is restarted."""
    site.cluster.nats.make_room()
    for _ in range(_PROBES):
        await asyncio.sleep(_PROBE_SECONDS)
        await site.cluster.nats.restart_unhealthy()


async def _find_leader(site: FaultSite) -> NatsServer:
    # Another fault may delay an election.
    return await persist("find the leader of the stream", site.cluster.nats.find_leader)


async def kill_leader(site: FaultSite) -> None:
    await (await _find_leader(site)).kill()


async def pause_leader(site: FaultSite) -> None:
    (await _find_leader(site)).child.pause()


async def wipe_follower(site: FaultSite) -> None:
    """It loses its data, as with a new emptyDir, and gets them from the others."""
    leader = await _find_leader(site)
    await next(server for server in site.cluster.nats.servers if server is not leader).wipe()


def _get_backup(site: FaultSite) -> Path:
    return site.cluster.run_dir / "etcd-backup"


async def back_up_etcd(site: FaultSite) -> None:
    shutil.rmtree(_get_backup(site), ignore_errors=True)  # an earlier fault may have left one
    await site.cluster.control_plane.back_up_etcd(_get_backup(site))


async def restore_etcd(site: FaultSite) -> None:
    await site.cluster.control_plane.restore_etcd(_get_backup(site))
    await heal_again(site)
    await rotate_tokens(site)  # as kubelets do for their pods
    await site.write_again()


async def rotate_tokens(site: FaultSite) -> None:
    await persist("rotate tokens", site.cluster.rotate_tokens)


async def revoke_tokens(site: FaultSite) -> None:
    await persist("revoke tokens", site.cluster.tokens.revoke_all)


async def rotate_talos_certificates(site: FaultSite) -> None:
    """The CA is another one, and connections end: the client certificates of the processes are invalid."""
    machines = site.cluster.machines
    machines.pki.rotate()
    await machines.cut_endpoint(0)
    await machines.restore_endpoint(0)


def make_answer_fault(name: str, fault: ServerFault, verbs: Sequence[str], every: int = 1) -> Fault:
    """The proxy in front of kube-apiserver gives one in so many requests of these verbs that answer."""
    return Fault(
        name,
        "api-answers",
        lambda site: site.cluster.api_proxy.inject(fault, verbs=verbs, every=every),
        lambda site: site.cluster.api_proxy.heal(),
    )


def make_webhook_fault(name: str, *, hangs: bool) -> Fault:
    """An admission webhook of a third party that hangs, or denies what the services write."""

    def register(site: FaultSite) -> Awaitable[None]:
        webhook = site.cluster.webhook
        webhook.hangs = hangs
        webhook.find_denial_reason = lambda _: "not during this fault"
        return persist(f"inject {name}", lambda: webhook.register(site.cluster.kubelets, _WEBHOOK_SCOPE))

    def unregister(site: FaultSite) -> Awaitable[None]:
        return persist(f"heal {name}", lambda: site.cluster.webhook.unregister(site.cluster.kubelets))

    return Fault(name, "webhook", register, unregister, is_stored=True)


def make_link_fault(name: str, link: Link, state: LinkState, process: str | None = None) -> Fault:
    """The links of all processes get that state, or only those of one process."""

    def set_link(site: FaultSite, to: LinkState) -> None:
        only = "all-in-one" if process is not None and site.cluster.mode == "all-in-one" else process
        site.cluster.links.set_state(link, to, only)

    return Fault(
        name, f"{link}-link", lambda site: set_link(site, state), lambda site: set_link(site, HEALTHY)
    )


def list_process_faults(process: str, modes: tuple[Mode, ...]) -> Iterator[Fault]:
    target = f"process-{process}"
    yield Fault(
        f"{process}-killed",
        target,
        lambda site: site.cluster.services.kill(process),
        lambda site: site.cluster.services.restart(process),
        modes=modes,
    )
    yield Fault(
        f"{process}-paused",
        target,
        lambda site: site.cluster.services.children[process].pause(),
        lambda site: site.cluster.services.children[process].resume(),
        hold_seconds=(17.0, 19.0),  # longer than the Lease, which lasts 15 s
        modes=modes,
    )


def make_clock_fault(name: str, seconds: float, *, is_everywhere: bool) -> Fault:
    """The wall clock jumps in all processes, or in one replica of each service."""

    def jump(site: FaultSite, to: float) -> None:
        for process in site.cluster.services.ports:
            if is_everywhere or f"{process}-2" in site.cluster.services.ports:
                set_clock_offset(site.cluster.run_dir, process, to)

    return Fault(name, "clock", lambda site: jump(site, seconds), lambda site: jump(site, 0.0))


def make_machine_fault(name: str, **faults: Any) -> Fault:
    return Fault(
        name,
        "machine-3",
        lambda site: site.cluster.machines.set_faults(PARTIAL, **faults),
        lambda site: site.cluster.machines.set_faults(PARTIAL),
    )


def make_right_fault(user: str, right: str) -> Fault:
    """The ClusterRole of a user loses all rules, and gets them again."""
    path = f"/apis/{RBAC}/v1/clusterroles/{user}"
    kept: list[Any] = []

    async def exchange(site: FaultSite, rules: list[Any]) -> list[Any]:
        found = await site.cluster.kubelets.send("GET", path)
        await site.cluster.kubelets.send("PUT", path, body=found | {"rules": rules})
        return list(found["rules"] or ())  # null once they are revoked

    async def revoke(site: FaultSite) -> None:
        async def send() -> None:
            removed = await exchange(site, [])
            kept[:] = removed or kept  # the answer to the first attempt may have been lost

        await persist(f"revoke the rights of {user}", send)

    async def restore(site: FaultSite) -> None:
        async def send() -> None:
            await exchange(site, kept)

        await persist(f"restore the rights of {user}", send)

    return Fault(f"{right}-revoked", f"rights-{user}", revoke, restore, is_stored=True)


def make_installation_fault() -> Fault:
    """Another release is installed by mistake in the same cluster, with the NATS of the first one."""
    running: list[ServiceProcesses] = []

    async def install(site: FaultSite) -> None:
        cluster = site.cluster
        run_dir = make_directory(cluster.run_dir / SECOND)
        services = await cluster.started.enter_async_context(
            ServiceProcesses.start(
                run_dir,
                cluster.control_plane,
                cluster.kubelets,
                nats_url=cluster.nats.servers[0].url,
                talosconfig=cluster.machines.write_talosconfig(run_dir / "talosconfig"),
                all_in_one=True,
                instance=f"{ALL_IN_ONE}-second",  # prefix of its users and its Leases
                flags=[f"--cloud-config={cluster.rules_file}"],
            )
        )
        await services.wait_until_ready()  # it has no effect before
        running.append(services)

    async def uninstall(_: FaultSite) -> None:
        services = running.pop()
        for name in list(services.children):
            await services.children.pop(name).stop(_STOP_SECONDS)

    return Fault(
        "second-installation",
        "installation",
        install,
        uninstall,
        hold_seconds=(12.0, 16.0),
        modes=SINGLE_SERVER_MODES,  # the keys of a chart's NATS are the first installation's
    )
