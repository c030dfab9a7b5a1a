"""The demo itself: start the parts, let nodes join, show them, tell what it took, leave nothing behind."""

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from cli.demo import view
from cli.demo.cast import cast, readable
from cli.demo.journeys import Journeys
from cli.demo.parts import Parts, running
from libs.common.bus import Message, Opened
from libs.common.kube_api.api import NODES, KubeApi
from libs.common.kube_api.config import load_kube_config
from libs.common.kube_api.objects import UnreadableObject
from libs.common.kube_api.reflector import Changed, Happening, Listed, Reflector
from libs.common.nats_bus.bus import NatsBus
from libs.common.node import Node
from libs.common.subjects import ROOT
from libs.testbed.kubelet_node import first_node
from libs.testbed.kubelets import Kubelet
from libs.testbed.machines import Machine

_TICK_SECONDS = 0.1
_SECONDS_BETWEEN_LINES = 1.0


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for."""

    nodes: int
    real: bool
    all_in_one: bool
    exit_when_ready: bool
    patience_seconds: float
    keep_logs: Path | None


class HeardByDemo:
    """A bus follower that passes everything on to the journeys."""

    def __init__(self, journeys: Journeys) -> None:
        self._journeys = journeys

    def begin(self, opened: Opened) -> None: ...

    def apply(self, message: Message) -> None:
        self._journeys.heard(message)

    def caught_up(self) -> None: ...

    def lost(self, reason: str) -> None: ...


async def demo(wanted: Wanted, console: Console) -> bool:
    """Run it; whether every node became ready. Cancelled (Ctrl-C), it ends everything it started."""
    with _run_dir(wanted.keep_logs) as run_dir:
        console.print(Text("Starting a cluster on this machine", style="bold"))
        async with running(
            run_dir,
            real=wanted.real,
            all_in_one=wanted.all_in_one,
            told=lambda what, took: view.step(console, what, took),
        ) as parts:
            return await _let_nodes_join(wanted, parts, console)


async def _let_nodes_join(wanted: Wanted, parts: Parts, console: Console) -> bool:
    journeys = Journeys()
    machines = cast(wanted.nodes)
    await parts.machines.put(*machines)
    async with _watching(parts, journeys):
        begun = time.monotonic()
        console.print(Text(f"\n{wanted.nodes} nodes join", style="bold"))
        async with asyncio.TaskGroup() as group:
            group.create_task(_join(machines, parts, journeys))
            group.create_task(_show(wanted, journeys, console, begun))
        await _tell(parts, journeys, console, machines, time.monotonic() - begun)
    if not wanted.exit_when_ready:
        await _stay(parts, console)
    return journeys.all_ready


@contextlib.asynccontextmanager
async def _watching(parts: Parts, journeys: Journeys) -> AsyncIterator[None]:
    """Hear the flow, and see the Nodes as Kubernetes holds them: ready is what Kubernetes says."""
    config = load_kube_config(parts.api_server.kubeconfig(), {})
    api = KubeApi(config, user_agent="talos-ccm-demo")
    bus = await NatsBus.connect((parts.nats.url,), service="demo")

    async def see(happening: Happening[Node]) -> None:
        now = datetime.now(UTC)
        match happening:
            case Listed(items=nodes):
                for node in nodes:
                    journeys.seen(node, now)
            case Changed(item=node):
                journeys.seen(node, now)

    reflector = Reflector(api, NODES, on_unreadable=_unreadable)
    tasks = [
        asyncio.create_task(bus.follow("demo", f"{ROOT}.>", HeardByDemo(journeys))),
        asyncio.create_task(reflector.run(see)),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await bus.close()
        await api.close()


def _unreadable(unreadable: UnreadableObject) -> None:
    raise RuntimeError(f"the API server sent a Node that cannot be read: {unreadable}")


async def _join(machines: list[Machine], parts: Parts, journeys: Journeys) -> None:
    """All kubelets register at once."""

    async def one(machine: Machine) -> None:
        platform = machine.platform.platform if machine.platform else ""
        journeys.joined(machine.name, platform, datetime.now(UTC))
        await parts.kubelets.join(Kubelet.on(machine))

    async with asyncio.TaskGroup() as group:
        for machine in machines:
            group.create_task(one(machine))


async def _show(wanted: Wanted, journeys: Journeys, console: Console, begun: float) -> None:
    """Draw until every node is ready or patience ends: a picture on a terminal, lines in a pipe."""

    def seconds() -> float:
        return time.monotonic() - begun

    def going_on() -> bool:
        all_ready = len(journeys) == wanted.nodes and journeys.all_ready
        return not all_ready and seconds() < wanted.patience_seconds

    if not console.is_terminal or console.is_dumb_terminal:
        next_line = 0.0
        while going_on():
            if seconds() >= next_line:
                next_line += _SECONDS_BETWEEN_LINES
                console.print(view.line(journeys, wanted=wanted.nodes, seconds=seconds()), highlight=False)
            await asyncio.sleep(_TICK_SECONDS)
        return
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        while going_on():
            size = console.size
            picture = view.live(
                journeys, wanted=wanted.nodes, seconds=seconds(), width=size.width, height=size.height
            )
            screen.update(picture, refresh=True)
            await asyncio.sleep(_TICK_SECONDS)


async def _tell(
    parts: Parts, journeys: Journeys, console: Console, machines: list[Machine], took: float
) -> None:
    """What it took, and one node before and after; or which nodes are stuck, and why."""
    console.print(view.line(journeys, wanted=len(journeys), seconds=took), highlight=False)
    console.print()
    console.print(view.summary(journeys))
    ready = {journey.name for journey in journeys if journey.ready_at}
    if shown := next((machine for machine in machines if machine.name in ready), None):
        kubelet = Kubelet.on(shown)
        before = first_node(kubelet, datetime.now(UTC))  # what its kubelet registered
        after = await parts.kubelets.request("GET", f"/api/v1/nodes/{kubelet.name}")
        console.print(Text(f"\nNode {kubelet.name}", style="bold"))
        console.print(view.before_and_after(readable(before), readable(after.body), console.width))
    stuck = [journey for journey in journeys if not journey.ready_at]
    if stuck:
        console.print()
        console.print(view.troubles(stuck))


async def _stay(parts: Parts, console: Console) -> None:
    """Keep the cluster for whoever wants to look around, until Ctrl-C."""
    console.print(Text("\nThe cluster stays up until Ctrl-C:", style="bold"))
    console.print(f"  kubectl --kubeconfig {parts.api_server.kubeconfig()} get nodes", soft_wrap=True)
    console.print(f"  nats --server {parts.nats.url} sub 'talosccm.v1.>'", soft_wrap=True, highlight=False)
    await asyncio.Event().wait()


@contextlib.contextmanager
def _run_dir(keep_logs: Path | None) -> Iterator[Path]:
    """A directory for this run: removed at the end, or the one that the user named, kept."""
    if keep_logs is not None:
        yield keep_logs.resolve()
        return
    path = Path(tempfile.mkdtemp(prefix="talos-ccm-demo-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)
