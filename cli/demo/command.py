"""The click command `talos-ccm demo`."""

import sys
from pathlib import Path
from typing import Any

import click

from cli.demo.demo_exit import create_log_directory, run_to_exit_status
from cli.demo.demo_options import MAX_NODES, DemoOptions
from cli.demo.rule_values import read_rule_keys


@click.command(short_help="Watch simulated Talos nodes join a cluster.")
@click.option(
    "--nodes", type=click.IntRange(1, MAX_NODES), default=20, show_default=True, help="How many nodes join."
)
@click.option(
    "--bus",
    type=click.Choice(["nats", "memory"]),
    default="nats",
    show_default=True,
    help="What carries the messages between the services: a nats-server, started here, or the memory of the "
    "one process that they then share.",
)
@click.option(
    "--all-in-one/--separate",
    default=None,
    help="Run all services in one process, or each in its own. Default: separate on nats; memory allows "
    "all-in-one only.",
)
@click.option(
    "--real",
    is_flag=True,
    help="Use the real kube-apiserver, etcd and kube-controller-manager, built from source at the first run, "
    "and Talos machines on COSI's own server; otherwise both are simulated.",
)
@click.option(
    "--cloud-config",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    metavar="FILE",
    help="Rules for these nodes, as in ccm-config.yaml. In the end it is told what they gave; while the "
    "cluster stays up, edit the file and look again.",
)
@click.option(
    "--exit-when-ready",
    is_flag=True,
    help="End as soon as every node is ready and has its certificate, or patience is over, instead of at "
    "Ctrl-C. The status is 0 if every one is and has, and 1 if not, either way.",
)
@click.option(
    "--patience",
    "patience_seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="How long the nodes may take to join and become ready, and then to get their certificates.",
)
@click.option(
    "--keep-logs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the logs and configurations of all parts in this directory (new or empty).",
)
def demo(**asked: Any) -> None:
    """Let simulated Talos nodes join a Kubernetes cluster, and watch them become usable.

    Everything runs on this machine, on loopback addresses, and is gone when the demo ends. With --real the
    first run builds the control plane, which needs Go and takes some minutes.
    """
    wanted = DemoOptions(**asked)
    if wanted.option_conflict:
        raise click.UsageError(wanted.option_conflict)
    if wanted.cloud_config is not None:
        read_rule_keys(wanted.cloud_config)  # reports a mistake before anything starts
    if wanted.keep_logs is not None:
        create_log_directory(wanted.keep_logs)
    sys.exit(run_to_exit_status(wanted))
