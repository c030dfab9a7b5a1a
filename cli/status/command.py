"""The click commands `talos-ccm status` and `talos-ccm status ipam`."""

import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cli import access_options
from cli.command_exit import run_command


def _parse_seconds(_: click.Context, __: click.Parameter, text: str) -> float:
    seconds = access_options.parse_seconds(text)
    if seconds < 1:
        raise click.BadParameter(f"{text!r} is not at least 1s")
    return seconds


def _reject_ignored_options(context: click.Context) -> None:
    """Raise UsageError for an option before the subcommand, because the subcommand would ignore it."""
    for parameter in context.command.get_params(context):
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
            name = parameter.opts[0]
            raise click.UsageError(f"{name} must follow the subcommand {context.invoked_subcommand}")


@click.group(
    invoke_without_command=True,
    short_help="Show the status of services, NATS, Nodes and certificates.",
)
@click.option("--watch", is_flag=True, help="Refresh the output until Ctrl-C.")
@click.option(
    "--interval",
    callback=_parse_seconds,
    default="5s",
    show_default=True,
    metavar="DURATION",
    help="Time between two refreshes of --watch.",
)
@access_options.KUBERNETES_OPTIONS
@access_options.CHART_OPTIONS
@access_options.LEASE_OPTIONS
@access_options.NATS_OPTIONS
@access_options.output_option("Output format. With --watch, json prints one line per refresh.")
@click.pass_context
def status(context: click.Context, /, *, watch: bool, interval: float, output: str, **where: Any) -> None:
    """Show the status of the controller: services, leader, NATS consumers, Nodes, certificate signing
    requests (CSRs), pod CIDRs and certificates.

    Kubernetes is read with your own permissions; parts that you may not read are listed as unknown.
    NATS is read in the watcher's pod, which requires permission to exec. Nothing is changed.

    \b
    Exit status:
      0  no problems
      1  problems, listed in the first lines
      2  no problem found but some parts are unknown, or no access to the
         cluster
      With --watch, the exit status of the last refresh.

    \b
    Examples:
      talos-ccm status
      talos-ccm status --watch --interval 2s
      talos-ccm status -o json | jq '.nodes.uninitialized[]'
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    if context.invoked_subcommand is not None:
        _reject_ignored_options(context)
        return
    with run_command("Reading the cluster"):
        from cli.cluster.query import ClusterQuery  # noqa: PLC0415 - `--help` need not load it
        from cli.status.run_status import show_status, watch_status  # noqa: PLC0415

        query = ClusterQuery(**where)
        if watch:
            sys.exit(watch_status(query, every_seconds=interval, output=output))
        sys.exit(show_status(query, output))


@status.command(short_help="Show pod CIDR pools, allocations and conflicts.")
@click.option("--nodes", "with_nodes", is_flag=True, help="List the pod CIDRs and claims of each Node.")
@access_options.KUBERNETES_OPTIONS
@access_options.CHART_OPTIONS
@access_options.service_flag("ipam", "cluster-cidr", "NETWORK,...")
@access_options.service_flag("ipam", "node-cidr-mask-size", "BITS")
@access_options.service_flag("ipam", "node-cidr-mask-size-ipv4", "BITS")
@access_options.service_flag("ipam", "node-cidr-mask-size-ipv6", "BITS")
@access_options.service_flag("ipam", "pod-cidr-quarantine", "DURATION")
@access_options.cloud_config_option(
    "Path to the --cloud-config file of ipam, with the pools. Default: the ConfigMap of the chart."
)
@access_options.NATS_OPTIONS
@access_options.output_option("Output format. json always lists the Nodes.")
def ipam(*, with_nodes: bool, cloud_config: Path | None, output: str, **source: Any) -> None:
    """Show pod CIDR pools with their used, free and quarantined blocks, the pod CIDRs of Nodes, and
    conflicts.

    The command lists all Nodes and the claims of ipam (ConfigMaps
    kube-node-lease/talos-ccm-pod-cidrs-*). It reads the flags of ipam from the pods of the chart, and the
    file from the chart's ConfigMap. Without pools in the file and without --cluster-cidr, the pod networks
    are those that metadata has read from Talos: the command reads them from NATS in the watcher's pod.
    Parts that cannot be read are listed as unavailable. Nothing is changed.

    \b
    Exit status:
      0  no conflicts
      1  conflicts: overlapping or invalid pod CIDRs, pod CIDRs without a claim
         or claimed for another Node, claims without a Node, unreadable claims
      2  no access to the cluster, invalid arguments or file, or networks that
         ipam rejects

    \b
    Examples:
      talos-ccm status ipam --nodes
      talos-ccm status ipam --cloud-config ccm-config.yaml
      talos-ccm status ipam -o json | jq '.conflicts[]'
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    with run_command("Reading the cluster"):
        from cli.cluster.query import ClusterQuery  # noqa: PLC0415 - `--help` need not load it
        from cli.status.run_status import show_ipam_status  # noqa: PLC0415
        from services.ipam.settings import IpamSettings  # noqa: PLC0415

        flags = access_options.pop_flags(source, IpamSettings)
        query = ClusterQuery(**source)
        sys.exit(show_ipam_status(query, flags, cloud_config, with_nodes=with_nodes, output=output))
