"""The click commands `talos-ccm status` and `talos-ccm status ipam`."""

import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cli import access_options
from libs.common.settings.flag_values import parse_duration, parse_list

_MAX_SECONDS = 360_000_000  # a timedelta of this size can still be added to a date


def _parse_seconds(_: click.Context, __: click.Parameter, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not {error}") from None
    if not 1 <= seconds <= _MAX_SECONDS:
        raise click.BadParameter(f"{text!r} is not from 1s to {_MAX_SECONDS // 3600}h")
    return seconds


def _reject_ignored_options(context: click.Context) -> None:
    """Raise UsageError for an option before the subcommand, because the subcommand would ignore it."""
    for parameter in context.command.get_params(context):
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
            name = parameter.opts[0]
            raise click.UsageError(f"{name} stands before {context.invoked_subcommand}: write it behind")


def _split_values(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    return parse_list(",".join(texts))


@click.group(
    invoke_without_command=True,
    short_help="Show how everything stands: services, queues, Nodes, certificates.",
)
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option(
    "--interval",
    callback=_parse_seconds,
    default="5s",
    show_default=True,
    metavar="DURATION",
    help="How long to wait between two looks of --watch.",
)
@access_options.KUBERNETES_OPTIONS
@access_options.CHART_OPTIONS
@access_options.LEASE_OPTIONS
@access_options.NATS_OPTIONS
@access_options.output_option("Words, or JSON; with --watch a line for each look.")
@click.pass_context
def status(context: click.Context, /, *, watch: bool, interval: float, output: str, **where: Any) -> None:
    """Show how everything stands now: which services are there and who leads, what waits in the queues,
    which Nodes are not usable and why, requests for certificates, pod CIDRs, certificates that end.

    Nodes, requests, the Lease, pods and claims are read with your own rights; what you may not read is left
    out, and said. Messages are read with a key that can only read, in the watcher's pod by exec. Nothing is
    written.

    \b
    Exit status:
      0  all is well
      1  something is wrong: it is said in the first lines
      2  that cannot be told: nobody to ask, or no right to ask
      With --watch, that of the last look.

    \b
    Examples:
      talos-ccm status
      talos-ccm status --watch --interval 2s
      talos-ccm status -o json | jq '.nodes.uninitialized[]'
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    if context.invoked_subcommand is not None:
        _reject_ignored_options(context)
        return
    try:
        from cli.kube_listing import ClusterUnavailable  # noqa: PLC0415 - `--help` need not load it
        from cli.lines import print_error  # noqa: PLC0415
        from cli.status.flow_from_cluster import StatusQuery  # noqa: PLC0415
        from cli.status.run_status import show_status, watch_status  # noqa: PLC0415

        source = StatusQuery(**where)
        as_json = output == "json"
        try:
            if watch:
                code = watch_status(source, every_seconds=interval, as_json=as_json)
            else:
                code = show_status(source, as_json=as_json)
        except ClusterUnavailable as error:
            print_error(f"Error: {error}")
            code = 2
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(code)


@status.command(short_help="Show pools of pod CIDRs, who has what, and conflicts.")
@click.option("--nodes", "with_nodes", is_flag=True, help="List each Node's pod CIDRs and claims.")
@access_options.KUBERNETES_OPTIONS
@click.option(
    "--cluster-cidr",
    "cluster_cidrs",
    multiple=True,
    callback=_split_values,
    metavar="NETWORK,...",
    help="As ipam has it, or has it from Talos. Without it and without pools of --cloud-config it is not "
    "known how many blocks there are.",
)
@click.option("--cloud-config", type=click.Path(path_type=Path), metavar="FILE", help="As ipam has it.")
@click.option(
    "--node-cidr-mask-size",
    "mask_size",
    type=int,
    default=0,
    metavar="BITS",
    help="As ipam has it. Default for all three: that of most claims, or else 24 and 80.",
)
@click.option("--node-cidr-mask-size-ipv4", "mask_size_ipv4", type=int, default=0, metavar="BITS")
@click.option("--node-cidr-mask-size-ipv6", "mask_size_ipv6", type=int, default=0, metavar="BITS")
@click.option(
    "--pod-cidr-quarantine",
    "quarantine",
    callback=_parse_seconds,
    default="10m",
    show_default=True,
    metavar="DURATION",
    help="As ipam has it.",
)
@access_options.output_option("Words, or JSON, which has the Nodes in any case.")
def ipam(
    *,
    with_nodes: bool,
    kubeconfig: Path | None,
    context: str,
    cloud_config: Path | None,
    quarantine: float,
    output: str,
    **said: Any,
) -> None:
    """Show pod CIDRs: pools and how much of them is in use, free and quarantined; who has what; conflicts.

    All Nodes and the claims of ipam (ConfigMaps kube-node-lease/talos-ccm-pod-cidrs-*) are listed. Nothing is
    written.

    \b
    Exit status:
      0  no conflicts
      1  conflicts: podCIDRs that overlap, are odd, claimed for another Node or
         not at all, claims without Node, unreadable claims
      2  that cannot be told: nobody to ask, no right to list, or the command
         line or the file is wrong

    \b
    Examples:
      talos-ccm status ipam --cluster-cidr 10.244.0.0/16,fd00:10:244::/48
      talos-ccm status ipam --cloud-config ccm-config.yaml --nodes
      talos-ccm status ipam -o json | jq '.conflicts[]'
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    try:
        from cli.kube_listing import ClusterUnavailable  # noqa: PLC0415 - `--help` need not load it
        from cli.lines import print_error  # noqa: PLC0415
        from cli.status.ipam_from_cluster import IpamQuery  # noqa: PLC0415
        from cli.status.run_ipam_status import IpamOptions, show_ipam_status  # noqa: PLC0415
        from services.ipam.effective_networks import NetworkFlags, validate_network_flags  # noqa: PLC0415

        networks = NetworkFlags(**said)
        mistakes = validate_network_flags(networks)
        if mistakes:
            raise click.UsageError("\n".join(mistakes))
        told = IpamOptions(
            network_flags=networks, cloud_config=cloud_config, quarantine=timedelta(seconds=quarantine)
        )
        try:
            source = IpamQuery(kubeconfig=kubeconfig, context=context)
            code = show_ipam_status(source, told, with_nodes=with_nodes, as_json=output == "json")
        except ClusterUnavailable as error:
            print_error(f"Error: {error}")
            code = 2
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(code)
