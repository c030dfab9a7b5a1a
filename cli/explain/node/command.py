"""`talos-ccm explain node`: its words."""

import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from libs.common.settings.flag_values import parse_duration, parse_list

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


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
@click.option("--kubeconfig", type=_FILE, help="As for kubectl. Default: KUBECONFIG, ~/.kube/config.")
@click.option("--context", default="", metavar="NAME", help="Context of the kubeconfig. Default: its own.")
@click.option(
    "-n",
    "--namespace",
    default="kube-system",
    show_default=True,
    metavar="NAME",
    help="Where the chart is installed.",
)
@click.option("--release", default="", metavar="NAME", help="Of the chart, where the namespace has several.")
@click.option("--talosconfig", type=_FILE, help="As for talosctl. Default: TALOSCONFIG, ~/.talos/config.")
@click.option(
    "--talos-endpoints",
    default="",
    metavar="HOST,...",
    help="Control planes to ask by. Default: TALOS_ENDPOINTS, the talosconfig's.",
)
@click.option("--delete-preempted-gcp-spot", "gcp_spot", is_flag=True, help="As lifecycle has it.")
@click.option("--lifecycle-not-ready-time", "not_ready_for", default="5m", **_SECONDS)
@click.option("--lifecycle-evidence-time", "span", default="10m", **_SECONDS)
@click.option("--lifecycle-start-grace", "grace", default="10m", **_SECONDS)
@click.option("--without-talos", is_flag=True, help="Ask no machine: tell only what Kubernetes holds.")
@click.option(
    "--cloud-config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="As the services have it: its rules, and whose Nodes are whose.",
)
@click.option(
    "--nats-url",
    default="",
    envvar="NATS_URL",
    metavar="URL,...",
    help="Tell also what the services said last of it, as NATS has it. Default: NATS_URL, or not.",
)
@click.option("--nats-nkey-file", type=_FILE, envvar="NATS_NKEY_FILE", help="As the services have one.")
@click.option("--nats-ca-file", type=_FILE, envvar="NATS_CA_FILE", help="As the services have it.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Words, or JSON.",
)
def node(
    *,
    output: str,
    gcp_spot: bool,
    not_ready_for: timedelta,
    span: timedelta,
    grace: timedelta,
    cloud_config: Path | None,
    nats_url: str,
    **source: Any,
) -> None:
    """Explain what becomes of the Node NAME, and why: whose it is, whether it is initialised or what stands
    in its way, its providerID against what its machine says, what the labeler would write, and what evidence
    lifecycle has, and lacks, that its machine is gone.

    Nothing is written. The machine is asked over the Talos API, as metadata asks it, and those of all Nodes
    where another one answers in its place; all that is decided is decided by the services' own code, by what
    is so now.

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
      talos-ccm explain node web-1 --nats-url nats://127.0.0.1:4222 -o json
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    servers = parse_list(nats_url)
    _refuse_nonsense(servers)
    try:
        from cli.explain.node.from_cluster import CannotAsk, Source  # noqa: PLC0415 - `--help` need not load it
        from cli.explain.node.run import explain_node  # noqa: PLC0415
        from cli.lines import complain  # noqa: PLC0415
        from cli.render.run import Refused, read_config  # noqa: PLC0415
        from services.lifecycle.decide import Terms  # noqa: PLC0415

        try:
            file = read_config(cloud_config) if cloud_config else None
            terms = Terms(gcp_spot=gcp_spot, not_ready_for=not_ready_for, span=span, grace=grace)
            asked = Source(nats_servers=servers, **source)
            status = explain_node(asked, file, terms, as_json=output == "json")
        except (CannotAsk, Refused) as error:
            complain(f"Error: {error}")
            status = 2
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.exit(status)


def _refuse_nonsense(servers: tuple[str, ...]) -> None:
    for url in servers:
        if "://" in url and url.partition("://")[0] not in ("nats", "tls"):
            raise click.UsageError(f'--nats-url: "{url}" is not an address such as nats://host:4222')
