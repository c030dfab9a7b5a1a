"""Runs the demo: starts the components, lets nodes join, shows the progress, and cleans up."""

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
from cli.demo.certificate_progress import CertificateProgress
from cli.demo.demo_cluster import DemoCluster, start_cluster
from cli.demo.demo_options import DemoOptions, suggest_next_runs
from cli.demo.node_progress import DemoProgress
from cli.demo.progress_sources import LogFollower, follow_logs, watch_objects
from cli.demo.rule_values import format_rule_values, read_rule_keys
from cli.demo.simulated_machines import diff_node_lines, make_machines
from libs.common.contract.signing_request import SigningRequest
from libs.common.kube.api import NODES, SIGNING_REQUESTS
from libs.testbed.child_process import open_run_directory
from libs.testbed.kubelet_node import build_registered_node
from libs.testbed.kubelets import SimKubelet
from libs.testbed.machine_fleet import SimMachineFacts

_TICK_SECONDS = 0.1
_SECONDS_BETWEEN_LINES = 1.0


async def run_demo(wanted: DemoOptions, console: Console) -> bool:
    """Run the demo and return whether every node became ready and has its certificate.

    When cancelled (Ctrl-C), it ends everything that it started.
    """
    with open_run_directory("demo", wanted.keep_logs) as run_dir:
        console.print(Text("Starting a cluster on this machine", style="bold"))

        def told(what: str, took: float) -> None:
            view.print_step(console, what, took)

        async with start_cluster(run_dir, wanted, told) as parts, asyncio.TaskGroup() as group:
            deaths = group.create_task(parts.services.wait_for_exit())
            all_well = await _join_nodes(wanted, parts, console)
            if wanted.exit_when_ready:
                console.print()
                console.print(
                    view.render_commands("Try next", suggest_next_runs(wanted, all_ready=all_well)),
                    soft_wrap=True,
                )
            else:
                await _keep_running(wanted, parts, console, run_dir)
            deaths.cancel()
    return all_well


async def _join_nodes(wanted: DemoOptions, parts: DemoCluster, console: Console) -> bool:
    machines = make_machines(wanted.nodes)
    journeys = DemoProgress()
    keys = read_rule_keys(wanted.cloud_config) if wanted.cloud_config else None
    logs = [child.log for child in parts.services.children.values()]
    await parts.machines.put_machines(*machines)
    with follow_logs(logs, journeys) as told:
        kubeconfig = parts.api_server.kubeconfig()
        async with watch_objects(kubeconfig, NODES, journeys.apply_node), asyncio.TaskGroup() as group:
            console.print(Text(f"\n{_pluralize_nodes(wanted.nodes)}", style="bold"))
            begun = time.monotonic()
            for machine in machines:
                journeys.add_node(machine.name, _platform(machine), datetime.now(UTC))
            joining = group.create_task(parts.kubelets.join_all(map(SimKubelet.of_machine, machines)))
            await _show_progress(wanted, journeys, told, console, begun)
            joining.cancel()  # the timeout also limits joins; they are done once all nodes are ready
            took = time.monotonic() - begun
        told.read_new_lines()
    console.print(view.format_progress(journeys, seconds=took), highlight=False)
    certificates = await _request_certificates(wanted, parts, journeys, console)
    await _print_result(parts, journeys, console, machines)
    if certificates.missing:
        console.print()
        console.print(view.render_missing_certificates(certificates.missing))
    if keys is not None:
        nodes = (await parts.kubelets.request("GET", "/api/v1/nodes")).body["items"]
        console.print()
        console.print(
            view.render_list("Results of the rules", format_rule_values(keys, nodes)), soft_wrap=True
        )
    return journeys.are_all_ready and certificates.are_all_issued


async def _request_certificates(
    wanted: DemoOptions, parts: DemoCluster, journeys: DemoProgress, console: Console
) -> CertificateProgress:
    """Request a certificate for each ready node; wait until all are settled, or until the timeout.

    Real kubelets request certificates while they join. Here they wait until all nodes are ready, so that the
    times of joins are not distorted.
    """
    certificates, begun = CertificateProgress(), time.monotonic()
    kubelets = [
        SimKubelet.of_machine(machine)
        for machine in make_machines(wanted.nodes)
        if machine.name in journeys.ready_names
    ]
    if not kubelets:
        return certificates
    settled = asyncio.Event()

    def see(request: SigningRequest, at: datetime) -> None:
        certificates.update_request(request, at)
        if certificates.is_settled:
            settled.set()

    for kubelet in kubelets:
        certificates.add_request(kubelet.name, datetime.now(UTC))
    async with watch_objects(parts.api_server.kubeconfig(), SIGNING_REQUESTS, see):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wanted.patience_seconds), asyncio.TaskGroup() as asking:
                for kubelet in kubelets:
                    asking.create_task(parts.kubelets.request_certificate(kubelet))
                await settled.wait()
    console.print(f"{time.monotonic() - begun:6.1f} s later: {certificates.summary}", highlight=False)
    return certificates


def _platform(machine: SimMachineFacts) -> str:
    return machine.platform.platform if machine.platform else ""


def _pluralize_nodes(nodes: int) -> str:
    return "1 node joins" if nodes == 1 else f"{nodes} nodes join"


async def _show_progress(
    wanted: DemoOptions, journeys: DemoProgress, logs: LogFollower, console: Console, begun: float
) -> None:
    """Show the progress until every node is ready or the timeout: live on a terminal, lines in a pipe."""
    on_terminal = console.is_terminal and not console.is_dumb_terminal
    screen = Live(console=console, auto_refresh=False, transient=True) if on_terminal else None
    next_line = _SECONDS_BETWEEN_LINES
    with screen or contextlib.nullcontext():
        while not journeys.are_all_ready and (seconds := time.monotonic() - begun) < wanted.patience_seconds:
            await asyncio.sleep(min(_TICK_SECONDS, wanted.patience_seconds - seconds))
            logs.read_new_lines()
            if screen:
                picture = view.render_progress(
                    journeys, seconds=seconds, width=console.width, height=console.height
                )
                screen.update(picture, refresh=True)
            elif seconds >= next_line:
                next_line += _SECONDS_BETWEEN_LINES
                console.print(view.format_progress(journeys, seconds=seconds), highlight=False)


async def _print_result(
    parts: DemoCluster, journeys: DemoProgress, console: Console, machines: list[SimMachineFacts]
) -> None:
    """Print the summary and the changes of one node, then the nodes that are stuck."""
    console.print()
    console.print(view.render_summary(journeys))
    if shown := next((machine for machine in machines if machine.name in journeys.ready_names), None):
        kubelet = SimKubelet.of_machine(shown)
        before = build_registered_node(kubelet, datetime.now(UTC))  # as the kubelet registered it
        after = await parts.kubelets.request("GET", f"/api/v1/nodes/{kubelet.name}")
        console.print()
        console.print(view.render_node_changes(kubelet.name, diff_node_lines(before, after.body)))
    stuck = [journey for journey in journeys if not journey.ready_at]
    if stuck:
        console.print()
        console.print(view.render_problems(stuck))


async def _keep_running(wanted: DemoOptions, parts: DemoCluster, console: Console, run_dir: Path) -> None:
    """Keep the cluster for manual inspection until Ctrl-C."""
    kubeconfig = run_dir / "kubeconfig"  # a short path for commands to copy from the terminal
    kubeconfig.symlink_to(parts.api_server.kubeconfig().resolve())
    talosconfig = run_dir / "talosconfig"
    talosconfig.symlink_to(parts.machines.write_talosconfig().resolve())
    asks = make_machines(1)[0].name
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
    console.print(view.render_commands("The cluster runs until Ctrl-C. Try", rows), soft_wrap=True)
    told_to_end = asyncio.Event()
    # From here on, Ctrl-C is the announced end and does not change the exit status.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, told_to_end.set)
    await told_to_end.wait()
