"""The scenario `soak`: simulated hours with changes, replaced nodes and reconnects; nothing may grow.

An hour of a cluster takes `--soak-hour-seconds`. The periods of our services shrink with it, down to a
second, so that each machine is polled and each message repeated as often as in a real hour. Back-offs and the
pause before watches open stay as they are. The Lease of the watcher outlasts a slow start of kube-apiserver.
"""

import asyncio
import math
import os
import signal
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

import msgspec

from libs.testbed.child_process import ChildProcess, wait_until
from libs.testbed.machine_fleet import SimMachineFacts
from libs.testbed.service_processes import PATIENT_LEASE_FLAGS, measure_process_usage
from tests.bench import metrics
from tests.bench.bench_cluster import BenchCluster, BenchServices, wait_until_quiet
from tests.bench.figures import BenchRun, Figures
from tests.bench.measurement import Measurement, make_fleet, move_external_address, run_machines

# The first hours of a process fill caches, pools and the allocator's arenas.
WARM_UP_HOURS: Final = 4
_HOURS_PER_DAY: Final = 24
# Promised over a simulated day. Memory of CPython moves by a percent from one hour to the next.
_MOST_MEMORY_GROWTH: Final = 0.03
# A count may move by one at any hour, for example while a connection is replaced.
_MOST_COUNT_GROWTH: Final = 0.05
_MOST_COUNT_NOISE: Final = 2.0
_MOST_LAG_SECONDS: Final = 0.1  # promised, of the event loop at p99
# The stream keeps messages about deleted objects for an hour, which is long in simulated hours.
_GROWS: Final = "context: NATS subjects"
_MEMORY: Final = " MB"  # the end of a figure


class HourSample(msgspec.Struct, frozen=True, kw_only=True):
    """All processes of ours at the end of a simulated hour, when they are idle."""

    figures: Figures  # such as "ours: ipam RSS MB", "ours: ipam tasks", "context: NATS consumers"
    loop_lag: Mapping[str, metrics.Histogram] = {}  # of each process since its start


def compute_slope(values: Sequence[float]) -> float:
    """The growth per hour: the median of the slopes of all pairs (Theil-Sen), which outliers do not move."""
    slopes = [(late - early) / (j - i) for (i, early), (j, late) in combinations(enumerate(values), 2)]
    return statistics.median(slopes) if slopes else math.nan


def compute_soak_figures(samples: Sequence[HourSample]) -> Figures:
    """The last value of each figure and its growth over a simulated day, without the first hours."""
    later = samples[WARM_UP_HOURS:]
    figures: Figures = {"simulated hours": float(len(samples))}
    for name, last in samples[-1].figures.items():
        figures[name] = last
        figures[f"{name}, growth per day"] = _compute_growth([sample.figures[name] for sample in later])
    for name, added in _subtract_lags(later).items():
        figures |= metrics.compute_lag_figures(name, added)
    return figures


def _compute_growth(values: Sequence[float]) -> float:
    return compute_slope(values) * _HOURS_PER_DAY


def _subtract_lags(later: Sequence[HourSample]) -> Mapping[str, metrics.Histogram]:
    """The lag of each process over these hours."""
    if not later:
        return {}
    return {name: last - later[0].loop_lag[name] for name, last in later[-1].loop_lag.items()}


def find_soak_problems(samples: Sequence[HourSample]) -> list[str]:
    """What grew by more than is promised."""
    later = samples[WARM_UP_HOURS:]
    if len(later) < 2:
        return [f"a soak needs more than {WARM_UP_HOURS + 1} hours to show growth"]
    found = []
    for name, last in samples[-1].figures.items():
        values = [sample.figures[name] for sample in later]
        growth, usual = _compute_growth(values), statistics.median(values)
        is_memory = name.endswith(_MEMORY)
        most = (
            _MOST_MEMORY_GROWTH * usual if is_memory else max(_MOST_COUNT_NOISE, _MOST_COUNT_GROWTH * usual)
        )
        if growth > most and name != _GROWS:
            found.append(f"{name} grows by {growth:.1f} per simulated day, to {last:.0f}")
    for name, added in _subtract_lags(later).items():
        lag = metrics.compute_percentile_bound(added, 99)
        if lag > _MOST_LAG_SECONDS:
            found.append(f"the event loop of {name} lags by up to {1000 * lag:.0f} ms (p99)")
    return found


_HOUR_SECONDS: Final = 3600.0
_HEARTBEATS_PER_HOUR: Final = 12  # the kubelet's nodeStatusReportFrequency is five minutes
_CHANGED_SHARE: Final = 10  # in each hour, one machine of so many gets another address
_RECOVERY_SECONDS: Final = 90.0
_CLAIMS: Final = "/api/v1/namespaces/kube-system/configmaps"
_REQUESTS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


async def measure_soak(m: Measurement) -> BenchRun:
    """Nodes live for `--soak-hours` simulated hours; each hour ends with a sample of the idle processes."""
    wanted = m.options
    machines = make_fleet(m.name, wanted.soak_nodes, ("hcloud",))
    samples: list[HourSample] = []
    problems: list[str] = []
    running = run_machines(m.stage, machines, certificates=1 + wanted.soak_hours)
    starting = m.start_services(pod_cidrs=True, own_flags=build_period_flags(wanted.soak_hour_seconds))
    async with starting as controlled, running as names:
        faults = _list_faults(m.stage, controlled)
        await m.join_nodes(names, alone=False, certificates=True, pod_cidrs=True)
        for hour in range(wanted.soak_hours):
            begun = time.monotonic()
            what, fault = faults[hour % len(faults)]
            await fault()
            failed = await _live_an_hour(m, machines, hour)
            samples.append(await _sample(m.stage, controlled))
            problems += [f"hour {hour + 1} ({what}): {problem}" for problem in failed]
            m.report(
                f"hour {hour + 1} of {wanted.soak_hours}: {what}; {_format_sample(samples[-1])}"
                + "".join(f"; {problem}" for problem in failed)
            )
            await asyncio.sleep(max(0.0, wanted.soak_hour_seconds - (time.monotonic() - begun)))
    return m.make_run("soak", compute_soak_figures(samples), problems + find_soak_problems(samples))


def _list_faults(
    stage: BenchCluster, controlled: BenchServices
) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
    """What happens at the start of an hour, in turn: each fault breaks connections that must come back."""

    async def restart_apiserver() -> None:
        await stage.control_plane.apiserver.kill()
        await stage.control_plane.restart_apiserver()

    async def cut_talos() -> None:
        await stage.machines.cut_endpoint(0)
        await stage.machines.restore_endpoint(0)

    async def renew_credentials() -> None:
        stage.machines.write_talosconfig()

    faults: list[tuple[str, Callable[[], Awaitable[None]]]] = [
        ("kube-apiserver restarted", restart_apiserver),
        ("Talos connections cut", cut_talos),
        ("Talos credentials renewed", renew_credentials),
    ]
    if controlled.nats is not None:
        faults.append(("nats-server restarted", controlled.nats.restart))
    return faults


def build_period_flags(hour_seconds: float) -> Mapping[str, Sequence[str]]:
    """The flags of each process that shorten its periods as much as the hour, down to a second."""
    shorten = hour_seconds / _HOUR_SECONDS
    resync, republish, status = (
        f"--{flag}={max(1.0, shorten * seconds):g}s"
        for flag, seconds in (
            ("talos-resync-period", 1800),
            ("metadata-republish-interval", 300),
            ("node-status-update-frequency", 300),
        )
    )
    return {
        "all-in-one": (*PATIENT_LEASE_FLAGS["all-in-one"], resync, republish, status),
        "watcher": (*PATIENT_LEASE_FLAGS["watcher"], status),
        "metadata": (resync, republish, status),
        "csr": (republish,),
        "ipam": (status,),
    }


async def _live_an_hour(m: Measurement, machines: list[SimMachineFacts], hour: int) -> list[str]:
    """Heartbeats of all nodes; meanwhile some change, one is replaced, and one renews its certificate.

    Returns what did not recover in time.
    """
    kubelets, wanted = m.stage.kubelets, m.options
    replaced, renewing = ([machines[(2 * hour + part) % len(machines)]] for part in range(2))
    changing = [each for each in machines[hour % _CHANGED_SHARE :: _CHANGED_SHARE] if each not in replaced]
    beating = [machine.name for machine in machines if machine not in replaced]
    every = wanted.soak_hour_seconds / _HEARTBEATS_PER_HOUR
    async with asyncio.TaskGroup() as group:
        group.create_task(
            kubelets.send_heartbeats(beating, seconds=wanted.soak_hour_seconds / 2, every_seconds=every)
        )
        changed = group.create_task(_change_addresses(m, changing, hour))
        joined = group.create_task(_replace_nodes(m, replaced))
        renewed = group.create_task(
            kubelets.file_requests([machine.name for machine in renewing], seconds=_RECOVERY_SECONDS)
        )
    issued = sum(bool(request.issued) for request in renewed.result().requests)
    await m.stage.admin.request("DELETE", _REQUESTS)  # kube-controller-manager deletes them after an hour
    quiet = await wait_until_quiet(m.stage, seconds=_RECOVERY_SECONDS, writes_only=True)
    problems = [*changed.result(), *joined.result()]
    if issued < len(renewing):
        problems.append(f"{len(renewing) - issued} renewed certificates were not issued in time")
    return problems if quiet else [*problems, "the services were not idle at its end"]


async def _change_addresses(m: Measurement, machines: list[SimMachineFacts], hour: int) -> list[str]:
    moved = [
        (machine, *move_external_address(machine, hour * len(machines) + number))
        for number, machine in enumerate(machines)
    ]
    expected = {machine.name: address for machine, _, address in moved}
    await m.stage.kubelets.expect_texts(expected)
    for machine, addresses, _ in moved:
        await m.stage.machines.change_machine(machine.id, addresses=addresses)
    shown = await m.stage.kubelets.wait_until_shown(expected, seconds=_RECOVERY_SECONDS)
    missing = sorted(expected.keys() - shown.keys())
    return [f"{name} did not get its new address in time" for name in missing]


async def _replace_nodes(m: Measurement, machines: list[SimMachineFacts]) -> list[str]:
    """Delete these Nodes and let them join again under their names."""
    names = [machine.name for machine in machines]
    await m.stage.kubelets.delete_nodes(names)
    joins = await m.join_nodes(
        names, alone=False, certificates=True, pod_cidrs=True, at_most=_RECOVERY_SECONDS
    )
    return [
        f"{node.name} was not usable in time after it had joined again"
        for node in joins.nodes
        if not (node.untainted and node.served and node.request and node.request.issued)
    ]


async def _sample(stage: BenchCluster, controlled: BenchServices) -> HourSample:
    await controlled.services.wait_until_ready()
    pages = await controlled.fetch_metrics()
    answer = await stage.admin.request("GET", _CLAIMS)
    figures = {"context: ConfigMaps in kube-system": float(len(answer.body["items"]))}
    if controlled.nats is not None:
        figures |= {f"context: {what}": n for what, n in (await controlled.nats.count_kept()).items()}
    for name, child in controlled.services.children.items():
        counts = await _sample_process(child, controlled.counts)
        figures |= {f"ours: {name} {what}": count for what, count in counts.items()}
    return HourSample(
        figures=figures, loop_lag={name: metrics.parse_histogram(page) for name, page in pages.items()}
    )


async def _sample_process(child: ChildProcess, counts: Path) -> Figures:
    """Memory, open file descriptors with sockets, asyncio tasks and threads of one process."""
    file = counts / f"{child.pid}.tasks"
    file.unlink(missing_ok=True)
    child.process.send_signal(signal.SIGUSR1)  # `instrumentation` answers with that file

    async def is_answered() -> bool:
        return file.exists()

    await wait_until(is_answered, child, what="counted", seconds=10)
    proc = Path(f"/proc/{child.pid}")
    pages = int((proc / "statm").read_text().split()[1])
    return {
        "RSS MB": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        "files": len(list((proc / "fd").iterdir())),
        "tasks": int(file.read_text()),
        "threads": measure_process_usage(child.pid).threads,
    }


def _format_sample(sample: HourSample) -> str:
    return "; ".join(f"{name.partition(': ')[2]} {value:.0f}" for name, value in sample.figures.items())
