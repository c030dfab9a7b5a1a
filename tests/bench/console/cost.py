"""`python -m tests.bench.console.cost`: what pulses and the live console cost the other services.

The services run on a real control plane, each in a process of its own. Pulses are switched off and on, and a
console with an open page is started and stopped, in turn, while the same processes go on. Beside it, the
command measures N pulses and the delivery of N messages alone. It prints figures and judges none.
"""

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Final, NamedTuple, cast

import aiohttp
import click

from libs.common.bus.nats.bus import NatsBus
from libs.common.clocks import utc_now
from libs.common.contract.events import MAX_PULSE_EVENTS, PULSE_TTL_SECONDS, RecordedNodeEvent, encode
from libs.common.contract.services import CONSOLE, DURABLES, LABELER
from libs.common.contract.subjects import ALL_SUBJECTS
from libs.common.observability import metrics
from libs.common.service.pulse_publisher import build_pulse
from libs.common.service.service import Service
from libs.testbed.nats_server import NatsServer
from libs.testbed.ports import allocate_port
from libs.testbed.run_directory import open_run_directory
from libs.testbed.service_processes import ServiceProcesses, measure_process_usage
from tests.bench import costs
from tests.bench.bench_cluster import (
    BenchCluster,
    BenchServices,
    start_cluster,
    start_services,
    wait_until_quiet,
)
from tests.bench.figures import Figures
from tests.bench.instrumentation import PULSE_SWITCH
from tests.bench.measurement import make_fleet, run_machines
from tests.bench.results import read_host
from tests.bus_actors import Recorder, make_event, run_during, wait_until
from tests.console.console_actors import ConsoleClient

_JOIN_SECONDS: Final = 600.0
_SETTLE_SECONDS: Final = 12.0  # longer than the period of pulses
_CONCURRENCY: Final = 64
# In an idle period, a resync would hit some variants and not others.
_NO_RESYNC: Final = "--node-status-update-frequency=20m"
_SERIES: Final = 30
_SUBJECTS: Final = 5000
_EVENT: Final = RecordedNodeEvent(  # as long as most
    node="page-0001",
    uid="0b1e6cf5-6d70-4c42-9e2d-7e1c6f3cbb1c",
    component="talos-ccm-labeler",
    type="Normal",
    reason="Synced",
    message="Node synced successfully",
    at=utc_now(),
)


class Variant(NamedTuple):
    """What runs beside the services."""

    name: str
    has_pulses: bool
    has_console: bool


VARIANTS: Final = (
    Variant("neither", has_pulses=False, has_console=False),
    Variant("pulses", has_pulses=True, has_console=False),
    Variant("pulses and console", has_pulses=True, has_console=True),
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--nodes", default=500, show_default=True, help="Nodes of a burst, each with a certificate.")
@click.option("--idle-nodes", default=5000, show_default=True, help="Nodes of an idle period.")
@click.option("--idle-seconds", default=30.0, show_default=True, help="Duration of an idle period.")
@click.option("--rounds", default=5, show_default=True, help="Rounds, each with every variant.")
@click.option(
    "--messages", default=5000, show_default=True, help="Pulses, and messages to a follower, measured alone."
)
@click.option("--only", type=click.Choice(["alone", "burst", "idle"]), help="Only this part.")
def main(
    *, nodes: int, idle_nodes: int, idle_seconds: float, rounds: int, messages: int, only: str | None
) -> None:
    """Measure the CPU of the services with and without pulses and the console."""
    host = read_host()
    click.echo(f"{host.processor}, {host.cores} cores, load {host.load_before}, {rounds} rounds")
    parts = [only] if only else ["alone", "burst", "idle"]
    if "alone" in parts:
        asyncio.run(_measure_alone(messages, rounds))
    if "burst" in parts:
        asyncio.run(_measure_bursts(nodes, rounds))
    if "idle" in parts:
        asyncio.run(_measure_idle(idle_nodes, idle_seconds, rounds))


# ---- on a real control plane


async def _measure_bursts(nodes: int, rounds: int) -> None:
    async with _run_services() as (stage, services):

        async def join(name: str) -> None:
            async with run_machines(stage, make_fleet(name, nodes), certificates=1) as names:
                await _join(stage, names, certificates=True)

        await join("warm-up")
        found = []
        for number, variant in _plan(rounds):
            async with _run_variant(stage, services, variant, f"burst-{number}"):
                async with costs.measure_costs(stage, services) as cost:
                    await join(f"burst-{number}")
                found.append((variant, cost.figures))
                _report(f"burst of {nodes} Nodes, round {number}", variant, cost.figures)
        _summarize(f"burst of {nodes} Nodes", found, 1.0)


async def _measure_idle(nodes: int, seconds: float, rounds: int) -> None:
    async with (
        _run_services(_NO_RESYNC) as (stage, services),
        run_machines(stage, make_fleet("idle", nodes)) as names,
    ):
        await _join(stage, names, certificates=False)
        await wait_until_quiet(stage, seconds=120)
        found = []
        for number, variant in _plan(rounds):
            async with _run_variant(stage, services, variant, f"idle-{number}"):
                before = await costs.read_costs(stage, services)
                await asyncio.sleep(seconds)
                figures = costs.compute_process_figures(before, await costs.read_costs(stage, services))
                found.append((variant, figures))
                _report(f"idle with {nodes} Nodes, round {number}", variant, figures)
        _summarize(f"{seconds:.0f} s idle with {nodes} Nodes", found, seconds)


async def _join(stage: BenchCluster, names: list[str], *, certificates: bool) -> None:
    await stage.kubelets.join(
        names, concurrency=_CONCURRENCY, certificates=certificates, seconds=_JOIN_SECONDS
    )


def _plan(rounds: int) -> Iterator[tuple[int, Variant]]:
    """Every variant in each round; every second round has them in reverse order."""
    for number in range(rounds):
        yield from ((number, variant) for variant in (VARIANTS if number % 2 else VARIANTS[::-1]))


@asynccontextmanager
async def _run_services(*flags: str) -> AsyncIterator[tuple[BenchCluster, BenchServices]]:
    with open_run_directory("console-cost", None) as run_dir:
        switch = run_dir / "pulses"
        switch.touch()
        os.environ[PULSE_SWITCH] = str(switch)  # the processes inherit it
        async with (
            start_cluster(run_dir, click.echo) as stage,
            start_services(
                stage,
                "separate",
                "services",
                flags=flags,
                patches=("tests.bench.instrumentation:switch_pulses",),
            ) as services,
        ):
            yield stage, services


@asynccontextmanager
async def _run_variant(
    stage: BenchCluster, services: BenchServices, variant: Variant, name: str
) -> AsyncIterator[None]:
    _switch_pulses(variant.has_pulses)
    async with AsyncExitStack() as stack:
        if variant.has_console:
            await stack.enter_async_context(_open_console(stage, services, name))
        await asyncio.sleep(_SETTLE_SECONDS)
        yield


def _switch_pulses(is_on: bool) -> None:
    switch = Path(os.environ[PULSE_SWITCH])
    if is_on:
        switch.touch()
    else:
        switch.unlink(missing_ok=True)


@asynccontextmanager
async def _open_console(stage: BenchCluster, services: BenchServices, name: str) -> AsyncIterator[None]:
    """A console in a process of its own, with a page that receives its changes."""
    assert services.nats is not None
    port = allocate_port()
    starting = ServiceProcesses.start(
        stage.run_dir / f"console-{name}",
        stage.control_plane,
        stage.admin,
        nats_url=services.nats.url,
        talosconfig=stage.machines.write_talosconfig(),
        flags=(f"--console-port={port}",),
        wirings=(CONSOLE,),
    )
    async with starting as console, aiohttp.ClientSession(read_bufsize=2**24) as session:
        await console.wait_until_ready()
        async with ConsoleClient(session, port).follow() as frames:

            async def read() -> None:
                async for _ in frames:
                    pass

            async with run_during(read()):
                yield


def _report(what: str, variant: Variant, figures: Figures) -> None:
    nats = figures["context: nats-server CPU s"]
    click.echo(f"{what}, {variant.name}: services {figures['ours: all CPU s']:.2f} s, nats {nats:.2f} s")


def _summarize(what: str, found: list[tuple[Variant, Figures]], seconds: float) -> None:
    """Print the medians, and the median and range of the ratios of each round."""
    for name in ("ours: all CPU s", "context: nats-server CPU s"):
        by_variant = {
            variant: [figures[name] for other, figures in found if other == variant] for variant in VARIANTS
        }
        bare = by_variant[VARIANTS[0]]
        for variant, values in by_variant.items():
            ratios = [value / other for value, other in zip(values, bare, strict=True)]
            click.echo(
                f"{what}: {name}{' per second' if seconds > 1 else ''}, {variant.name}: "
                f"{statistics.median(values) / seconds:.4f}, ratio {statistics.median(ratios):.3f} "
                f"({min(ratios):.3f} to {max(ratios):.3f})"
            )


# ---- alone: pulses and delivery, without anything else


async def _measure_alone(messages: int, rounds: int) -> None:
    with open_run_directory("console-alone", None) as run_dir:
        async with NatsServer.start(run_dir / "nats") as server:
            bus = await NatsBus.connect((server.url,), service="watcher")
            try:
                await bus.provision(DURABLES, max_bytes=2**28)
                await _measure_pulses(bus, server, messages)
                await _measure_delivery(bus, server, messages, rounds)
                await _measure_stats(bus, server, messages)
            finally:
                await bus.close()


async def _measure_pulses(bus: NatsBus, server: NatsServer, count: int) -> None:
    for number in range(_SERIES):  # as many as a process has after hours
        metrics.KUBE_REQUESTS.labels("labeler", "patch", f"resource-{number}", "200").inc()
        metrics.PUBLISHED.labels(f"decided.labeler.{number}", "published").inc()
        metrics.HANDLED.labels("labeler", f"event-{number}", "handled").inc()
    service = cast("Service", SimpleNamespace(spec=LABELER))  # a pulse reads nothing else of it
    for events in ((), (_EVENT,) * MAX_PULSE_EVENTS):
        own, nats = time.process_time(), _read_cpu(server)
        for _ in range(count):
            pulse = build_pulse(bus, service, "host_1", (), events)
            await bus.publish(pulse, ttl_seconds=PULSE_TTL_SECONDS)
        own_ms = 1000 * (time.process_time() - own) / count
        nats_ms = 1000 * (_read_cpu(server) - nats) / count
        what = f"one pulse with {len(events)} Events, {len(encode(pulse))} bytes"
        click.echo(f"{what}: {own_ms:.3f} ms of its process, {nats_ms:.3f} ms of nats-server")


async def _measure_delivery(bus: NatsBus, server: NatsServer, count: int, rounds: int) -> None:
    """What nats-server spends more for each message if a follower receives it."""
    more = []
    for _ in range(rounds):
        alone = await _measure_publishes(bus, server, count)
        recorder = Recorder()
        async with run_during(bus.follow("console", ALL_SUBJECTS, recorder)):
            await wait_until(lambda recorder=recorder: recorder.is_caught_up)  # type: ignore[misc]
            more.append(await _measure_publishes(bus, server, count) - alone)
    each = 1000 / count
    click.echo(
        f"one message to the console: {statistics.median(more) * each:.4f} ms of nats-server "
        f"({min(more) * each:.4f} to {max(more) * each:.4f})"
    )


async def _measure_stats(bus: NatsBus, server: NatsServer, count: int) -> None:
    """What nats-server spends for the state of stream and durables, which the console reads every 2 s."""
    before = _read_cpu(server)
    for _ in range(count):
        await bus.stats()
    click.echo(
        f"one state of the stream: {1000 * (_read_cpu(server) - before) / count:.3f} ms of nats-server"
    )


async def _measure_publishes(bus: NatsBus, server: NatsServer, count: int) -> float:
    before = _read_cpu(server)
    for number in range(count):
        await bus.publish(make_event(f"web-{number % _SUBJECTS}"))
    return _read_cpu(server) - before


def _read_cpu(server: NatsServer) -> float:
    return measure_process_usage(server.child.pid).cpu_seconds


if __name__ == "__main__":
    main(prog_name="python -m tests.bench.console.cost")
