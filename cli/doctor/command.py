"""The click commands `talos-ccm doctor` and `talos-ccm inside talos`."""

import sys
from pathlib import Path

import click

from cli import access_options
from cli.command_exit import run_command
from cli.doctor.check_names import CHECK_NAMES


@click.command(short_help="Check an installation and suggest fixes.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(CHECK_NAMES),
    metavar="NAME",
    help=f"Run only this check. Repeatable. One of {', '.join(CHECK_NAMES)}.",
)
@click.option(
    "--namespace", "-n", default="", metavar="NAME", help="Namespace of the installation. Default: detected."
)
@click.option("--release", default="", metavar="NAME", help="Name of the Helm release, if there are several.")
@access_options.KUBERNETES_OPTIONS
@access_options.output_option("Output format. json lists the checks in the order of importance.")
def doctor(
    *, only: tuple[str, ...], namespace: str, release: str, kubeconfig: Path | None, context: str, output: str
) -> None:
    """Check an installation of the chart. Each check reports ok, wrong or unknown: wrong means that the
    check found a problem. The output has the observation and a fix.

    Nothing is changed. You need permission to read workloads, pods, Nodes, certificate signing requests,
    Leases and ConfigMaps, to create subjectaccessreviews, and to exec in the pods of metadata and watcher.
    Checks for which you lack a permission report unknown.

    \b
    Exit status:
      0  all checks are ok
      1  at least one check is wrong
      2  no check is wrong, but at least one is unknown, or no access to the
         cluster

    \b
    Examples:
      talos-ccm doctor
      talos-ccm doctor --only rights --only kubelets
      talos-ccm doctor -o json | jq '.checks[] | select(.state != "ok")'
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    with run_command("Checking the installation"):
        from cli.doctor.from_cluster import DoctorQuery  # noqa: PLC0415 - `--help` need not load it
        from cli.doctor.run_doctor import run_doctor  # noqa: PLC0415

        source = DoctorQuery(kubeconfig=kubeconfig, context=context, namespace=namespace, release=release)
        sys.exit(run_doctor(source, frozenset(only), as_json=output == "json"))


@click.command()
@click.option(
    "--node-ip", "node_ips", multiple=True, metavar="ADDRESS", help="Machine to query (address). Repeatable."
)
@click.option(
    "--endpoints", default="", metavar="HOST,...", help="Same value as --talos-endpoints of metadata."
)
def talos(node_ips: tuple[str, ...], endpoints: str) -> None:
    """Print the state of the mounted Talos credential as JSON."""
    import asyncio  # noqa: PLC0415

    import msgspec  # noqa: PLC0415

    from cli.doctor.talos_credential_probe import probe_credential  # noqa: PLC0415

    seen = asyncio.run(probe_credential(node_ips, endpoints))
    sys.stdout.buffer.write(msgspec.json.encode(seen) + b"\n")
    sys.exit(1 if seen.problem else 0)
