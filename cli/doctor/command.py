"""The click command `talos-ccm doctor`."""

import sys
from pathlib import Path
from typing import Final

import click

from cli import access_options
from cli.command_exit import run_command

CHECK_NAMES: Final = (  # in the order of importance
    "services",
    "config",
    "rights",
    "talos-credential",
    "talos",
    "nats",
    "kubelets",
    "serving-certificates",
    "controllers",
    "pod-cidrs",
    "approvers",
    "clock",
    "versions",
    "pod-security",
    "load-balancers",
    "routes",
    "clouds",
)


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
        from cli.cluster.kube_reader import run_gathering  # noqa: PLC0415 - `--help` need not load it
        from cli.cluster.query import ClusterQuery  # noqa: PLC0415
        from cli.doctor.diagnosis import diagnose, list_parts  # noqa: PLC0415
        from cli.doctor.findings import format_diagnosis, format_location  # noqa: PLC0415
        from cli.doctor.read_installation import read_installation  # noqa: PLC0415
        from cli.lines import print_result  # noqa: PLC0415

        query = ClusterQuery(kubeconfig=kubeconfig, context=context, namespace=namespace, release=release)
        seen = run_gathering(read_installation(query, list_parts(only)))
        diagnosis = diagnose(seen, only)
        print_result(output, format_diagnosis(diagnosis, format_location(seen)), diagnosis)
        sys.exit(diagnosis.exit_status)
