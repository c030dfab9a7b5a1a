"""What the main job costs: one node at a time, many at once; requests, calls, CPU, memory, start time.

`python -m bench.main_job [--nodes 100] [--singles 50] [--all-in-one] [--json FILE]`
"""

import argparse
import asyncio
import platform
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cli.demo.cast import cast
from cli.demo.journeys import percentile
from cli.demo.parts import Parts, running
from libs.common.kube_api.api import NODES, KubeApi
from libs.common.kube_api.config import load_kube_config
from libs.common.kube_api.reflector import Changed, Happening, Reflector
from libs.common.node import Node
from libs.testbed.kubelets import Kubelet
from libs.testbed.machines import Machine

_PATIENCE_SECONDS = 300


class Untainted:
    """When Kubernetes first showed each node without the taint, by the clock of this process."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self._news = asyncio.Event()

    async def see(self, happening: Happening[Node]) -> None:
        if isinstance(happening, Changed) and happening.item.initialized:
            self.at.setdefault(happening.item.name, time.monotonic())
            self._news.set()

    async def wait_for(self, names: set[str]) -> None:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not names <= self.at.keys():
                self._news.clear()
                await self._news.wait()


class Measured(msgspec.Struct, kw_only=True):
    """One run."""

    mode: str
    machine: str
    singles: int
    single_p50_ms: float
    single_p99_ms: float
    burst: int
    joins_done_seconds: float
    burst_all_untainted_seconds: float
    burst_p50_seconds: float
    burst_p99_seconds: float
    api_requests_per_node: dict[str, float]
    talos_calls_per_node: dict[str, float]
    processes: dict[str, dict[str, float]]


async def measure(args: argparse.Namespace) -> Measured:
    async with prepared(all_in_one=args.all_in_one) as (parts, untainted):
        first, *machines = cast(args.singles + args.nodes + 1)
        await parts.machines.put(first, *machines)
        await join(parts, [first], untainted)  # it pays for connections and imports
        singles: list[float] = []
        for machine in machines[: args.singles]:
            singles += (await join(parts, [machine], untainted))[0].values()
        await parts.machines.reset_calls()
        mark, before = parts.api_server.audit_mark(), cpu(parts)
        burst = machines[args.singles :]
        clock = time.monotonic()
        took, joined = await join(parts, burst, untainted)
        all_done = time.monotonic() - clock
        await asyncio.sleep(2)  # the last events are on their way; this is no test
        return Measured(
            mode="all-in-one" if args.all_in_one else "separate",
            machine=f"{platform.machine()}, {platform.python_version()}",
            singles=len(singles),
            single_p50_ms=1000 * percentile(singles, 50),
            single_p99_ms=1000 * percentile(singles, 99),
            burst=len(burst),
            joins_done_seconds=joined,
            burst_all_untainted_seconds=all_done,
            burst_p50_seconds=percentile(list(took.values()), 50),
            burst_p99_seconds=percentile(list(took.values()), 99),
            api_requests_per_node=requests_per_node(parts, mark, len(burst)),
            talos_calls_per_node=await calls_per_node(parts, len(burst)),
            processes=processes(parts, before),
        )


@asynccontextmanager
async def prepared(*, all_in_one: bool) -> AsyncIterator[tuple[Parts, Untainted]]:
    """Everything runs, and somebody watches the Nodes."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="talos-ccm-bench-")))
        begun = time.monotonic()
        started: dict[str, float] = {}
        parts = await stack.enter_async_context(
            running(folder, real=True, all_in_one=all_in_one, told=started.__setitem__)
        )
        print(f"parts ready after {time.monotonic() - begun:.1f} s: {started}")
        api = KubeApi(load_kube_config(parts.api_server.kubeconfig(), {}), user_agent="bench")
        stack.push_async_callback(api.close)
        untainted = Untainted()
        watching = asyncio.create_task(Reflector(api, NODES, on_unreadable=print).run(untainted.see))
        stack.callback(watching.cancel)
        yield parts, untainted


async def join(parts: Parts, machines: list[Machine], untainted: Untainted) -> tuple[dict[str, float], float]:
    """Seconds from each kubelet's first request to the untainted node, and until all had joined."""
    begun: dict[str, float] = {}

    async def one(machine: Machine) -> None:
        begun[machine.name] = time.monotonic()
        await parts.kubelets.join(Kubelet.on(machine))

    first = time.monotonic()
    await asyncio.gather(*(one(machine) for machine in machines))
    joined = time.monotonic() - first
    await untainted.wait_for(set(begun))
    return {name: untainted.at[name] - at for name, at in begun.items()}, joined


async def calls_per_node(parts: Parts, nodes: int) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for call, count in (await parts.machines.calls()).items():
        counts[f"{call.method} {call.type}"] += count
    return per_node(counts, nodes)


def requests_per_node(parts: Parts, mark: int, nodes: int) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for request, count in parts.api_server.audit_counts(mark).items():
        if request.user.startswith("talos-ccm"):
            refused = "" if request.succeeded else " (refused)"
            counts[f"{request.verb} {request.resource}{refused}"] += count
    return per_node(counts, nodes)


def per_node(counts: Counter[str], nodes: int) -> dict[str, float]:
    return {what: round(count / nodes, 3) for what, count in sorted(counts.items())}


def cpu(parts: Parts) -> dict[str, float]:
    return {name: usage.cpu_seconds for name, usage in parts.services.usage().items()}


def processes(parts: Parts, before: dict[str, float]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "cpu_seconds_of_burst": round(usage.cpu_seconds - before[name], 2),
            "cpu_seconds_in_all": round(usage.cpu_seconds, 2),
            "peak_rss_mb": round(usage.peak_rss_bytes / 1e6, 1),
        }
        for name, usage in parts.services.usage().items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--singles", type=int, default=50)
    parser.add_argument("--all-in-one", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    measured = asyncio.run(measure(args))
    text = msgspec.json.format(msgspec.json.encode(measured), indent=2)
    print(f"{datetime.now(UTC):%Y-%m-%d}", text.decode())
    if args.json:
        args.json.write_bytes(text)


if __name__ == "__main__":
    main()
