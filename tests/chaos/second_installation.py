"""A second installation by mistake: another release in the same cluster, with the NATS of the first one."""

from collections.abc import Sequence
from typing import Final

from libs.testbed.child_process import make_directory
from libs.testbed.service_permissions import ALL_IN_ONE
from libs.testbed.service_processes import ServiceProcesses
from tests.chaos.cluster import SECOND, SINGLE_SERVER_MODES
from tests.chaos.fault import Fault, FaultSite

_INSTANCE: Final = f"{ALL_IN_ONE}-second"  # prefix of its users and its Leases
_STOP_SECONDS: Final = 30.0


def _make_fault() -> Fault:
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
                instance=_INSTANCE,
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
        name="second-installation",
        target="installation",
        inject=install,
        heal=uninstall,
        hold_seconds=(12.0, 16.0),
        modes=SINGLE_SERVER_MODES,  # the keys of a chart's NATS are the first installation's
    )


INSTALLATION_FAULTS: Final[Sequence[Fault]] = (_make_fault(),)
