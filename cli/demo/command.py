"""The click command `talos-ccm demo`."""

import sys
from pathlib import Path
from typing import Any

import click

from cli.demo.demo_exit import create_log_directory, run_to_exit_status
from cli.demo.demo_options import MAX_NODES, MAX_REAL_TALOS_NODES, DemoOptions
from cli.demo.rule_values import read_rule_keys
from cli.progress import PROGRESS


@click.command(short_help="Let simulated Talos nodes join a local cluster.")
@click.option(
    "--nodes",
    type=click.IntRange(1, MAX_NODES),
    default=20,
    show_default=True,
    help="Number of nodes that join.",
)
@click.option(
    "--bus",
    type=click.Choice(["nats", "memory"]),
    default="nats",
    show_default=True,
    help="Message bus between the services: a nats-server started by the demo, or the memory of one process. "
    "memory always runs all services in one process.",
)
@click.option(
    "--all-in-one/--separate",
    default=None,
    help="Run all services in one process, or each in its own process. Default: --separate with --bus nats, "
    "--all-in-one with --bus memory.",
)
@click.option(
    "--real",
    is_flag=True,
    help="Use the real kube-apiserver, etcd and kube-controller-manager, built from source at the "
    "first run, and Talos machines on COSI's own server. Default: both are simulated.",
)
@click.option(
    "--real-talos",
    is_flag=True,
    help="Run Talos's own API server (apid) for each machine, built from source at the first run. Requires "
    "Linux with root or user namespaces. The API server of Kubernetes is simulated, unless you add --real. "
    f"Limit: {MAX_REAL_TALOS_NODES} nodes.",
)
@click.option(
    "--cloud-config",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    metavar="FILE",
    help="Path to a --cloud-config file with rules for these nodes. The demo prints their results at "
    "the end and applies later changes of the file while the cluster runs.",
)
@click.option(
    "--exit-when-ready",
    is_flag=True,
    help="Exit 0 when every node is ready and has its certificate, except those that `ownership` excludes; "
    "otherwise exit 1, after --patience at the latest. Without this flag, the cluster runs until Ctrl-C.",
)
@click.option(
    "--patience",
    "patience_seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for each of two steps: all nodes ready, all certificates issued.",
)
@click.option(
    "--keep-logs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep logs and configuration files in this directory (new or empty).",
)
def demo(**asked: Any) -> None:
    """Start a local Kubernetes cluster, let simulated Talos nodes join it, and show how they become ready.

    Everything runs on this computer, on loopback addresses, and is deleted at the end. With --real, the
    first run builds the control plane, which requires Go and takes some minutes. With --real-talos, it builds
    Talos's API server, which takes one or two minutes.
    """
    wanted = DemoOptions(**asked)
    if wanted.option_conflict:
        raise click.UsageError(wanted.option_conflict)
    with PROGRESS.show("Loading the demo"):
        if wanted.cloud_config is not None:
            read_rule_keys(wanted.cloud_config)  # reports a mistake before anything starts
        if wanted.keep_logs is not None:
            create_log_directory(wanted.keep_logs)
        sys.exit(run_to_exit_status(wanted))
