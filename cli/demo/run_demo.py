"""Runs the demo: starts the components, lets nodes join, shows the progress, and cleans up."""

import asyncio
import contextlib
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from cli.demo import view
from cli.demo.demo_cloud import INCIDENT_SECONDS, lose_servers
from cli.demo.demo_cluster import (
    DemoCluster,
    choose_console_port,
    make_kubelet,
    make_machines,
    start_cluster,
)
from cli.demo.demo_environment import list_commands, write_environment
from cli.demo.demo_options import DemoOptions, suggest_next_runs
from cli.demo.node_progress import DemoProgress, LogFollower, follow_logs, watch_objects
from cli.demo.rule_values import count_matches, format_rule_values, read_rule_keys
from cli.progress import PROGRESS
from cli.render.preview import diff_nodes
from libs.common.contract.node import CONTROL_PLANE_LABEL, Node
from libs.common.contract.services import CONSOLE_PORT
from libs.common.contract.signing_request import SigningRequest
from libs.common.kube.api import NODES, SIGNING_REQUESTS
from libs.testbed.kubelet_node import build_registered_node
from libs.testbed.kubelets import MERGE
from libs.testbed.machine_fleet import SimMachineFacts
from libs.testbed.run_directory import open_run_directory

_TICK_SECONDS = 0.1
_SECONDS_BETWEEN_LINES = 1.0
_SECONDS_BETWEEN_REPORTS = 2.0  # the state of the Pods, while the cluster runs


async def run_demo(options: DemoOptions, console: Console) -> bool:
    """Run the demo and return whether every node became ready and has its certificate.

    When cancelled (Ctrl-C), it ends everything that it started.
    """
    with open_run_directory("demo", options.keep_logs) as run_dir, contextlib.ExitStack() as stack:
        PROGRESS.end()
        port = choose_console_port()
        address = f"http://127.0.0.1:{port}/"
        console.print(
            Text.assemble(("Live console  ", "bold"), (address, "cyan"), "  (once its service runs)")
        )
        if port != CONSOLE_PORT:
            console.print(f"Port {CONSOLE_PORT} is in use, so the console has another one.", highlight=False)
        console.print(Text("Starting a cluster on this machine", style="bold"))

        # Seconds pass until the services are ready: on a terminal, something moves meanwhile.
        spinner = stack.enter_context(console.status("starting the next component"))
        reporting = start_cluster(
            run_dir, options, lambda *step: console.print(view.render_step(*step)), port
        )
        async with reporting as parts, asyncio.TaskGroup() as group:
            spinner.stop()
            deaths = group.create_task(parts.services.wait_for_exit())
            all_well, shown = await _join_nodes(options, parts, console)
            if options.exit_when_ready:
                runs = suggest_next_runs(options, all_ready=all_well)
                _print_sections(console, view.render_commands("Try next", runs), soft_wrap=True)
            else:
                losing = group.create_task(_lose_servers(options, parts, console))
                await _keep_running(options, parts, console, run_dir, shown)
                losing.cancel()
            deaths.cancel()
    return all_well


async def _join_nodes(options: DemoOptions, parts: DemoCluster, console: Console) -> tuple[bool, str]:
    """Return whether all is well, and the node that the output shows as an example."""
    machines = make_machines(options.nodes)
    progress = DemoProgress()
    keys = read_rule_keys(options.cloud_config) if options.cloud_config else None
    paths = [child.log for child in parts.services.children.values()]
    parts.cloud.add_servers(machines)
    with follow_logs(paths, progress) as logs:
        kubeconfig, decided = parts.api_server.kubeconfig(), asyncio.Event()

        def see_request(request: SigningRequest, at: datetime) -> None:
            progress.apply_certificate_request(request, at)
            decided.set()

        async with (
            watch_objects(kubeconfig, NODES, progress.apply_node),
            watch_objects(kubeconfig, SIGNING_REQUESTS, see_request),
            asyncio.TaskGroup() as group,
        ):
            heading = "1 node joins" if options.nodes == 1 else f"{options.nodes} nodes join"
            console.print(Text(f"\n{heading}", style="bold"))
            begun = time.monotonic()
            for machine in machines:
                _add_node(progress, machine)
            joining = group.create_task(_join_all(parts, machines, progress, options.pause_seconds))
            await _show_progress(options, progress, logs, console, begun)
            took = time.monotonic() - begun
            if progress.are_all_ready:
                await joining  # each node has requested its certificate then
            else:
                joining.cancel()  # the timeout also limits joins
            logs.read_new_lines()
            console.print(view.format_progress(progress, seconds=took), highlight=False)
            ready = [machine for machine in machines if machine.name in progress.ready_names]
            if ready:
                await _wait_for_certificates(options, progress, decided)
                text = f"{time.monotonic() - begun - took:6.1f} s later: {view.format_certificates(progress)}"
                console.print(text, highlight=False)
    example = min(ready or machines, key=lambda machine: machine.control_plane)  # a worker, if any
    await _print_result(parts, progress, console, example)
    if keys is not None and options.cloud_config is not None:
        nodes = (await parts.kubelets.request("GET", "/api/v1/nodes")).body["items"]
        values = format_rule_values(keys, nodes) or await count_matches(
            options.cloud_config, parts.api_server.kubeconfig(), parts.machines.write_talosconfig()
        )
        _print_sections(console, view.render_list("Results of the rules", values), soft_wrap=True)
    return progress.are_all_ready and not progress.without_certificate, example.name


async def _join_all(
    parts: DemoCluster, machines: list[SimMachineFacts], progress: DemoProgress, pause_seconds: float
) -> None:
    async with asyncio.TaskGroup() as group:
        for machine in machines:
            group.create_task(_join(parts, machine, progress))
            await asyncio.sleep(pause_seconds)


async def _join(parts: DemoCluster, machine: SimMachineFacts, progress: DemoProgress) -> None:
    """Let a node join and request its certificate at once, as real kubelets do."""
    kubelet = make_kubelet(machine)
    _add_node(progress, machine)  # from here on, its time counts
    await parts.kubelets.join(kubelet)
    if machine.control_plane:  # Talos labels the Node: a kubelet may not
        labels = {"metadata": {"labels": {CONTROL_PLANE_LABEL: ""}}}
        path = f"/api/v1/nodes/{machine.name}"
        await parts.kubelets.request("PATCH", path, body=labels, content_type=MERGE)
    progress.add_certificate_request(machine.name, datetime.now(UTC))
    await parts.kubelets.request_certificate(kubelet)


def _add_node(progress: DemoProgress, machine: SimMachineFacts) -> None:
    platform = machine.platform.platform if machine.platform else ""
    progress.add_node(machine.name, platform, datetime.now(UTC))


async def _wait_for_certificates(
    options: DemoOptions, progress: DemoProgress, decided: asyncio.Event
) -> None:
    """Wait until all requested certificates are issued or denied, or until the timeout."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(options.patience_seconds):
            while not progress.are_certificates_settled:
                decided.clear()
                await decided.wait()


async def _show_progress(
    options: DemoOptions, progress: DemoProgress, logs: LogFollower, console: Console, begun: float
) -> None:
    """Show the progress until every node is ready or the timeout: live on a terminal, lines in a pipe."""
    on_terminal = console.is_terminal and not console.is_dumb_terminal
    screen = Live(console=console, auto_refresh=False, transient=True) if on_terminal else None
    next_line, timeout = _SECONDS_BETWEEN_LINES, options.ready_timeout_seconds
    with screen or contextlib.nullcontext():
        while not progress.are_all_ready and (seconds := time.monotonic() - begun) < timeout:
            await asyncio.sleep(min(_TICK_SECONDS, timeout - seconds))
            logs.read_new_lines()
            if screen:
                picture = view.render_progress(
                    progress, seconds=seconds, width=console.width, height=console.height
                )
                screen.update(picture, refresh=True)
            elif seconds >= next_line:
                next_line += _SECONDS_BETWEEN_LINES
                console.print(view.format_progress(progress, seconds=seconds), highlight=False)


async def _print_result(
    parts: DemoCluster, progress: DemoProgress, console: Console, example: SimMachineFacts
) -> None:
    """Print the summary and the changes of one node, then the nodes that are stuck."""
    _print_sections(console, view.render_summary(progress))
    if example.name in progress.ready_names:
        kubelet = make_kubelet(example)
        before = build_registered_node(kubelet, datetime.now(UTC))  # as the kubelet registered it
        after = (await parts.kubelets.request("GET", f"/api/v1/nodes/{kubelet.name}")).body
        changes = diff_nodes(msgspec.convert(before, Node), msgspec.convert(after, Node))
        _print_sections(console, view.render_node_changes(kubelet.name, changes))
    _print_sections(console, *view.render_problems(progress))


def _print_sections(console: Console, *sections: RenderableType, soft_wrap: bool = False) -> None:
    """Print each section below an empty line."""
    for section in sections:
        console.print()
        console.print(section, soft_wrap=soft_wrap)


async def _keep_running(
    options: DemoOptions, parts: DemoCluster, console: Console, run_dir: Path, node: str
) -> None:
    """Keep the cluster for manual inspection until Ctrl-C, and print what the services announce."""
    write_environment(options, parts, run_dir)
    heading = "The cluster runs until Ctrl-C. In another terminal, run the first line, then any other"
    commands = list_commands(options, parts, run_dir, node)
    _print_sections(console, view.render_commands(heading, commands), soft_wrap=True)
    told_to_end = asyncio.Event()
    # From here on, Ctrl-C is the announced end and does not change the exit status.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, told_to_end.set)
    with follow_logs([child.log for child in parts.services.children.values()], DemoProgress()) as logs:
        while not told_to_end.is_set():
            for line in logs.read_new_lines():
                text = f"{line.time.astimezone():%H:%M:%S}  {line.announcement}"
                console.print(text, markup=False, highlight=False)
            if parts.pods is not None:
                await parts.pods.report()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SECONDS_BETWEEN_REPORTS):
                    await told_to_end.wait()


async def _lose_servers(options: DemoOptions, parts: DemoCluster, console: Console) -> None:
    """After a while, let the cloud lose two servers, and print which."""
    await asyncio.sleep(INCIDENT_SECONDS)
    lost = await lose_servers(parts.cloud, parts.machines, parts.kubelets, make_machines(options.nodes))
    for text in lost:
        console.print(f"{datetime.now().astimezone():%H:%M:%S}  {text}", markup=False, highlight=False)
