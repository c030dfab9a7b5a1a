"""The click command `talos-ccm explain csr`."""

import sys
from pathlib import Path
from typing import Any

import click

from cli import access_options
from cli.command_exit import run_command


@click.command(short_help="Explain a kubelet's request for a serving certificate.")
@click.argument("name")
@click.option(
    "--node", "of_node", is_flag=True, help="NAME is the name of a node: explain its newest request."
)
@access_options.KUBERNETES_OPTIONS
@access_options.TALOS_OPTIONS
@click.option(
    "--all-machines",
    is_flag=True,
    help="Query every machine of the cluster for the names and addresses, not only the machines of "
    "Nodes that claim them.",
)
@click.option(
    "--without-talos",
    is_flag=True,
    help="Decide as csr does if metadata runs with --without-talos: query no machine.",
)
@click.option(
    "--csr-allowed-networks",
    "allowed_networks",
    default="",
    metavar="NETWORK,...",
    help="Value of the same flag of csr.",
)
@click.option(
    "--service-cluster-ip-range",
    "--service-networks",
    "service_networks",
    default="",
    metavar="NETWORK,...",
    help="Service networks of the cluster, in which no node may have an address: the value of the same "
    "flag of csr. Default: queried from a control plane through Talos.",
)
@click.option(
    "--csr-min-expiration",
    "least",
    default="",
    metavar="DURATION",
    help="Value of the same flag of csr.",
)
@click.option(
    "--csr-max-expiration",
    "most",
    default="",
    metavar="DURATION",
    help="Value of the same flag of csr.",
)
@access_options.cloud_config_option(
    "Path to the --cloud-config file, which configures ownership; - is standard input. Default: all Nodes "
    "are managed."
)
@access_options.output_option()
def csr(
    *,
    output: str,
    cloud_config: Path | None,
    allowed_networks: str,
    service_networks: str,
    least: str,
    most: str,
    **source: Any,
) -> None:
    """Explain the CertificateSigningRequest NAME: its content, the result of each check that csr makes
    now, the decision with its reason, the state in Kubernetes, and suggested actions.

    The command queries the machine of the requesting node through the Talos API, and the machines of Nodes
    that claim the same names or addresses. Without a talosconfig, the checks that need a machine are
    unknown. Nothing is changed.

    \b
    Exit status:
      0  the request is approved or would be approved
      1  it is not: it is denied, superseded, waiting, or not handled by csr
      2  unknown: no access to the cluster, no such request, or invalid
         arguments

    \b
    Examples:
      talos-ccm explain csr csr-x7k2p
      talos-ccm explain csr web-1 --node -o json
      talos-ccm explain csr csr-x7k2p --cloud-config ccm-config.yaml
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    with run_command("Querying the cluster and the machine"):
        import msgspec  # noqa: PLC0415

        from cli.explain.csr.from_cluster import RequestQuery  # noqa: PLC0415 - `--help` need not load it
        from cli.explain.csr.run_explain_csr import explain_csr  # noqa: PLC0415
        from cli.render.run_render import read_config  # noqa: PLC0415
        from libs.common.cloud_config.model import CloudConfig  # noqa: PLC0415
        from libs.common.contract.controllers import CSR_APPROVAL  # noqa: PLC0415
        from services.csr.settings import CsrSettings  # noqa: PLC0415

        flags = {
            "csr-allowed-networks": allowed_networks,
            "service-cluster-ip-range": service_networks,
            "csr-min-expiration": least,
            "csr-max-expiration": most,
        }
        settings = access_options.read_service_settings(CsrSettings, flags)
        services = settings.service_cluster_ip_range or None
        policy = msgspec.structs.replace(settings.policy, service_networks=services)
        file = read_config(cloud_config).document if cloud_config else CloudConfig()
        ownership = file.ownership.for_controller(CSR_APPROVAL)
        sys.exit(explain_csr(RequestQuery(**source), policy, ownership, as_json=output == "json"))
