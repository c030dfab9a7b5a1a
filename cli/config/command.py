"""The click commands `talos-ccm config` and `talos-ccm config check`."""

import sys
from pathlib import Path

import click

from cli import access_options
from cli.command_exit import run_command


@click.group(short_help="Check --cloud-config files and chart values.")
def config() -> None:
    """Check --cloud-config files and chart values before a cluster uses them."""


@config.command(short_help="Find all mistakes in config files and chart values.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@access_options.output_option(
    "Output format. text prints a line for each finding: FILE:LINE:, or FILE: and the path of a chart value."
)
@click.option(
    "--chart-values",
    is_flag=True,
    help="Check values of this chart, or of the reference controller's chart: in values files, and in each "
    "HelmRelease of Flux and Application of Argo CD of a file.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 on warnings, too.")
@click.option(
    "--differences/--no-differences",
    default=True,
    show_default=True,
    help="Report behavior that differs from the reference controller.",
)
def check(files: tuple[Path, ...], chart_values: bool, output: str, strict: bool, differences: bool) -> None:
    """Find all mistakes in --cloud-config files, or in chart values (--chart-values). FILE may be - for
    standard input.

    Templates and regular expressions are evaluated on a sample machine of every platform. No cluster is
    accessed.

    \b
    error    a controller or the chart rejects the file, or a rule uses a fact
             that no machine has, or a template fails on every platform
    warning  anything else that has no effect, or not on every platform
    differs  the reference controller (the Talos Cloud Controller Manager of
             Sidero Labs) behaves differently

    \b
    Exit status:
      0  no errors (with --strict: no errors or warnings)
      1  errors
      2  invalid arguments, or a file could not be read

    \b
    Examples:
      talos-ccm config check ccm-config.yaml
      talos-ccm config check --chart-values values.yaml helm-release.yaml
      talos-ccm config check --strict --no-differences clusters/*/ccm-config.yaml
      kubectl -n kube-system get configmap talos-cloud-controller-manager \\
        -o jsonpath='{.data.ccm-config\\.yaml}' | talos-ccm config check -
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    with run_command("Checking"):
        from cli.config.check_files import check_files  # noqa: PLC0415 - `--help` need not load all of it

        status = check_files(
            files,
            chart_values=chart_values,
            as_text=output == "text",
            strict=strict,
            differences=differences,
        )
        sys.exit(status)
