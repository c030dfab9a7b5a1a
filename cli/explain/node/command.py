"""The click command `talos-ccm explain node`."""

import sys
from pathlib import Path
from typing import Any

import click

from cli import access_options
from cli.command_exit import run_command

_SECONDS: Any = {
    "metavar": "DURATION", "show_default": True,
    "help": "Value of the same flag of lifecycle."
}  # fmt: skip


@click.command(short_help="Explain the state of a Node and whether its machine is gone.")
@click.argument("name")
@access_options.KUBERNETES_OPTIONS
@access_options.CHART_OPTIONS
@access_options.LEASE_OPTIONS
@access_options.TALOS_OPTIONS
@click.option(
    "--delete-preempted-gcp-spot", "gcp_spot", is_flag=True, help="Set it if lifecycle has the same flag."
)
@click.option("--lifecycle-not-ready-time", "not_ready_for", default="5m", **_SECONDS)
@click.option("--lifecycle-evidence-time", "span", default="10m", **_SECONDS)
@click.option("--lifecycle-start-grace", "grace", default="10m", **_SECONDS)
@click.option("--without-talos", is_flag=True, help="Query no machine; use only Kubernetes and NATS.")
@access_options.cloud_config_option(
    "Path to the --cloud-config file of the services, with rules and ownership. Default: the ConfigMap of "
    "the chart."
)
@access_options.NATS_OPTIONS
@access_options.output_option()
def node(
    *,
    output: str,
    gcp_spot: bool,
    not_ready_for: str,
    span: str,
    grace: str,
    cloud_config: Path | None,
    **source: Any,
) -> None:
    """Explain the state of the Node NAME: its problems with cause and fix, the steps of its initialization,
    its ownership and providerID, the changes that the labeler would make, the evidence that its machine is
    gone, and the last messages of the services.

    A kubeconfig is enough: messages are read in the watcher's pod. With a talosconfig, the command also
    queries the Node's machine as metadata does. If another machine answers instead, it queries the machines
    of all Nodes. The verdict comes from the code of the services and the present state. Nothing is changed.

    \b
    Exit status:
      0  the Node is healthy, or is being initialized; kept keys are no problem
      1  the Node has a problem: it is blocked, not ready or being deleted, its
         providerID differs from that of its machine, its pod CIDR or
         certificate is missing, its machine is unreachable or gone, or the
         --cloud-config file is invalid
      2  unknown: no access to the cluster, no such Node, or invalid arguments

    \b
    Examples:
      talos-ccm explain node web-1
      talos-ccm explain node web-1 --cloud-config ccm-config.yaml
      talos-ccm explain node web-1 -o json | jq .verdict
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    with run_command("Querying the cluster and the machine"):
        from cli.explain.node.from_cluster import NodeQuery  # noqa: PLC0415 - `--help` need not load it
        from cli.explain.node.run_explain_node import explain_node  # noqa: PLC0415
        from cli.render.run_render import read_config  # noqa: PLC0415
        from services.lifecycle.settings import LifecycleSettings  # noqa: PLC0415

        file = read_config(cloud_config) if cloud_config else None
        flags = {
            "delete-preempted-gcp-spot": str(gcp_spot).lower(),
            "lifecycle-not-ready-time": not_ready_for,
            "lifecycle-evidence-time": span,
            "lifecycle-start-grace": grace,
        }
        terms = access_options.read_service_settings(LifecycleSettings, flags).deletion_policy
        sys.exit(explain_node(NodeQuery(**source), file, terms, as_json=output == "json"))
