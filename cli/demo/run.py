"""The demo itself: start the parts, let nodes join, show them, tell what it took, leave nothing behind."""

import asyncio
import contextlib
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cli.demo import view
from cli.demo.cast import cast, compared
from cli.demo.certificates import Certificates
from cli.demo.given import given, keys_of
from cli.demo.journeys import Journeys
from cli.demo.parts import Parts, running
from cli.demo.wanted import Wanted, other_runs
from cli.demo.watching import Logs, following, seeing
from libs.common.kube_api.api import NODES, SIGNING_REQUESTS
from libs.common.signing_request import SigningRequest
from libs.testbed.children import run_directory
from libs.testbed.kubelet_node import first_node
from libs.testbed.kubelets import Kubelet
from libs.testbed.machines import Machine

_TICK_SECONDS = 0.1
_SECONDS_BETWEEN_LINES = 1.0


async def demo(wanted: Wanted, console: Console) -> bool:
    """Run it; whether every node became ready and has its certificate.

    Cancelled (Ctrl-C), it ends everything it started.
    """
    with run_directory("demo", wanted.keep_logs) as run_dir:
        console.print(Text("Starting a cluster on this machine", style="bold"))

        def told(what: str, took: float) -> None:
            view.step(console, what, took)

        async with running(run_dir, wanted, told) as parts, asyncio.TaskGroup() as group:
            deaths = group.create_task(parts.services.first_death())
            all_well = await _let_nodes_join(wanted, parts, console)
            if wanted.exit_when_ready:
                console.print()
                console.print(
                    view.commands("Try next", other_runs(wanted, all_ready=all_well)), soft_wrap=True
                )
            else:
                await _stay(wanted, parts, console, run_dir)
            deaths.cancel()
    return all_well


async def _let_nodes_join(wanted: Wanted, parts: Parts, console: Console) -> bool:
    machines = cast(wanted.nodes)
    journeys = Journeys()
    keys = keys_of(wanted.cloud_config) if wanted.cloud_config else None
    logs = [child.log for child in parts.services.children.values()]
    await parts.machines.put(*machines)
    with following(logs, journeys) as told:
        kubeconfig = parts.api_server.kubeconfig()
        async with seeing(kubeconfig, NODES, journeys.seen), asyncio.TaskGroup() as group:
            console.print(Text(f"\n{_counted(wanted.nodes)}", style="bold"))
            begun = time.monotonic()
            for machine in machines:
                journeys.joined(machine.name, _platform(machine), datetime.now(UTC))
            joining = group.create_task(parts.kubelets.join_all(map(Kubelet.on, machines)))
            await _show(wanted, journeys, told, console, begun)
            joining.cancel()  # patience bounds the joins too; when all nodes are ready they are over
            took = time.monotonic() - begun
        told.catch_up()
    console.print(view.line(journeys, seconds=took), highlight=False)
    certificates = await _ask_for_certificates(wanted, parts, journeys, console)
    await _tell(parts, journeys, console, machines)
    if certificates.without:
        console.print()
        console.print(view.without_certificate(certificates.without))
    if keys is not None:
        nodes = (await parts.kubelets.request("GET", "/api/v1/nodes")).body["items"]
        console.print()
        console.print(view.listed("What the rules gave", given(keys, nodes)), soft_wrap=True)
    return journeys.all_ready and certificates.all_issued


async def _ask_for_certificates(
    wanted: Wanted, parts: Parts, journeys: Journeys, console: Console
) -> Certificates:
    """Each ready node's kubelet asks, all at once; back when each is answered for good, or patience is over.

    Kubelets ask while they join. These wait until all are ready, so that the times above are of joins.
    """
    certificates, begun = Certificates(), time.monotonic()
    kubelets = [Kubelet.on(machine) for machine in cast(wanted.nodes) if machine.name in journeys.ready]
    if not kubelets:
        return certificates
    settled = asyncio.Event()

    def see(request: SigningRequest, at: datetime) -> None:
        certificates.seen(request, at)
        if certificates.settled:
            settled.set()

    for kubelet in kubelets:
        certificates.asks(kubelet.name, datetime.now(UTC))
    async with seeing(parts.api_server.kubeconfig(), SIGNING_REQUESTS, see):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wanted.patience_seconds), asyncio.TaskGroup() as asking:
                for kubelet in kubelets:
                    asking.create_task(parts.kubelets.ask_for_certificate(kubelet))
                await settled.wait()
    console.print(f"{time.monotonic() - begun:6.1f} s  {certificates.told}", highlight=False)
    return certificates


def _platform(machine: Machine) -> str:
    return machine.platform.platform if machine.platform else ""


def _counted(nodes: int) -> str:
    return "1 node joins" if nodes == 1 else f"{nodes} nodes join"


async def _show(wanted: Wanted, journeys: Journeys, logs: Logs, console: Console, begun: float) -> None:
    """Draw until every node is ready or patience ends: a picture on a terminal, lines in a pipe."""
    on_terminal = console.is_terminal and not console.is_dumb_terminal
    screen = Live(console=console, auto_refresh=False, transient=True) if on_terminal else None
    next_line = _SECONDS_BETWEEN_LINES
    with screen or contextlib.nullcontext():
        while not journeys.all_ready and (seconds := time.monotonic() - begun) < wanted.patience_seconds:
            await asyncio.sleep(min(_TICK_SECONDS, wanted.patience_seconds - seconds))
            logs.catch_up()
            if screen:
                picture = view.live(journeys, seconds=seconds, width=console.width, height=console.height)
                screen.update(picture, refresh=True)
            elif seconds >= next_line:
                next_line += _SECONDS_BETWEEN_LINES
                console.print(view.line(journeys, seconds=seconds), highlight=False)


async def _tell(parts: Parts, journeys: Journeys, console: Console, machines: list[Machine]) -> None:
    """What it took, and what became of one node; or which nodes are stuck, and why."""
    console.print()
    console.print(view.summary(journeys))
    if shown := next((machine for machine in machines if machine.name in journeys.ready), None):
        kubelet = Kubelet.on(shown)
        before = first_node(kubelet, datetime.now(UTC))  # what its kubelet registered
        after = await parts.kubelets.request("GET", f"/api/v1/nodes/{kubelet.name}")
        console.print()
        console.print(view.changes(kubelet.name, compared(before, after.body)))
    stuck = [journey for journey in journeys if not journey.ready_at]
    if stuck:
        console.print()
        console.print(view.troubles(stuck))


async def _stay(wanted: Wanted, parts: Parts, console: Console, run_dir: Path) -> None:
    """Keep the cluster for whoever wants to look around, until Ctrl-C."""
    kubeconfig = run_dir / "kubeconfig"  # a short name for what is to be copied from the terminal
    kubeconfig.symlink_to(parts.api_server.kubeconfig().resolve())
    talosconfig = run_dir / "talosconfig"
    talosconfig.symlink_to(parts.machines.talosconfig().resolve())
    asks = cast(1)[0].name
    access = f"--kubeconfig={kubeconfig} --talosconfig={talosconfig}"
    nats = f" --nats-url={parts.nats.url}" if parts.nats else ""
    rows = [
        ("nodes", f"kubectl --kubeconfig={kubeconfig} get nodes -o wide"),
        ("csr", f"kubectl --kubeconfig={kubeconfig} get csr"),
        ("why", f"talos-ccm explain node {asks} {access}{nats}"),
        ("", f"talos-ccm explain csr {asks} --node {access}"),
        *([("status", f"talos-ccm status --watch --kubeconfig={kubeconfig}{nats}")] if nats else []),
        ("logs", f"tail -f {run_dir / 'services'}/*.log"),
        *((name, f"curl http://127.0.0.1:{port}/metrics") for name, port in parts.services.ports.items()),
    ]
    if parts.nats:
        rows.append(("messages", f"nats --server {parts.nats.url} sub 'talosccm.v1.>'"))
    if wanted.cloud_config:
        rows.append(("rules", f"edit {wanted.cloud_config}: all nodes follow within 15 s"))
    console.print()
    console.print(view.commands("The cluster stays up until Ctrl-C. Look at", rows), soft_wrap=True)
    told_to_end = asyncio.Event()
    # From here on Ctrl-C is no interruption, but the end that was announced: it does not change the status.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, told_to_end.set)
    await told_to_end.wait()
