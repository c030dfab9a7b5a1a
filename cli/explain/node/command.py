"""The click command `talos-ccm explain node`."""

import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from cli import access_options
from libs.common.settings.flag_values import parse_duration


def _duration(_: click.Context, __: click.Parameter, text: str) -> timedelta:
    try:
        return timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(f"{text!r} is not {error}") from None


_SECONDS: Any = {
    "callback": _duration, "metavar": "DURATION", "show_default": True, "help": "As lifecycle has it."
}  # fmt: skip


@click.command(short_help="Explain what becomes of a Node, and whether its machine is gone.")
@click.argument("name")
@access_options.KUBERNETES_OPTIONS
@access_options.CHART_OPTIONS
@access_options.LEASE_OPTIONS
@access_options.TALOS_OPTIONS
@click.option("--delete-preempted-gcp-spot", "gcp_spot", is_flag=True, help="As lifecycle has it.")
@click.option("--lifecycle-not-ready-time", "not_ready_for", default="5m", **_SECONDS)
@click.option("--lifecycle-evidence-time", "span", default="10m", **_SECONDS)
@click.option("--lifecycle-start-grace", "grace", default="10m", **_SECONDS)
@click.option("--without-talos", is_flag=True, help="Ask no machine: tell only what Kubernetes holds.")
@click.option(
    "--cloud-config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="As the services have it: its rules, and whose Nodes are whose. Default: the chart's ConfigMap.",
)
@access_options.NATS_OPTIONS
@access_options.output_option()
def node(
    *,
    output: str,
    gcp_spot: bool,
    not_ready_for: timedelta,
    span: timedelta,
    grace: timedelta,
    cloud_config: Path | None,
    **source: Any,
) -> None:
    """Explain what the Node NAME lacks, since when, the cause and the fix; then its journey with the time of
    each step, whose it is, its providerID against what its machine says, what the labeler would write, what
    evidence lifecycle has, and lacks, that its machine is gone, and what the services said last.

    A kubeconfig suffices: what the services said is asked of the watcher's pod. With a talosconfig the
    machine is asked, too, as metadata asks it, and those of all Nodes where another one answers in its
    place. All is decided by the services' own code, by what is so now. Nothing is written.

    \b
    Exit status:
      0  all is well, or is being made so
      1  it is not: the Node is not initialised and something stands in its way,
         is not ready, contradicts its machine, or its machine is silent or gone
      2  that cannot be told: nobody to ask, no such Node, or the command line
         is wrong

    \b
    Examples:
      talos-ccm explain node web-1
      talos-ccm explain node web-1 --cloud-config ccm-config.yaml
      talos-ccm explain node web-1 -o json | jq .verdict
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    try:
        from cli.explain.node.from_cluster import NodeQuery  # noqa: PLC0415
        from cli.explain.node.run_explain_node import explain_node  # noqa: PLC0415
        from cli.kube_listing import ClusterUnavailable  # noqa: PLC0415 - `--help` need not load it
        from cli.lines import print_error  # noqa: PLC0415
        from cli.render.run_render import RenderError, read_config  # noqa: PLC0415
        from services.lifecycle.decide import DeletionPolicy  # noqa: PLC0415

        try:
            file = read_config(cloud_config) if cloud_config else None
            terms = DeletionPolicy(
                deletes_gcp_spot=gcp_spot, min_not_ready=not_ready_for, min_span=span, startup_grace=grace
            )
            asked = NodeQuery(**source)
            status = explain_node(asked, file, terms, as_json=output == "json")
        except (ClusterUnavailable, RenderError) as error:
            print_error(f"Error: {error}")
            status = 2
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.exit(status)
