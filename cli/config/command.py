"""The click commands `talos-ccm config` and `talos-ccm config check`."""

import signal
import sys
from pathlib import Path

import click


@click.group(short_help="Check the file of --cloud-config.")
def config() -> None:
    """The file of --cloud-config: what is wrong with it, before a cluster runs it."""


@config.command(short_help="Find every mistake in config files.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines FILE:LINE: that editors and CI understand, or JSON.",
)
@click.option(
    "--chart-values",
    is_flag=True,
    help="The files are values files of the chart, also those of the reference's chart.",
)
@click.option("--strict", is_flag=True, help="Warnings are errors, for the exit status.")
@click.option(
    "--differences/--no-differences",
    default=True,
    show_default=True,
    help="Name what the file does here and not in the reference controller.",
)
def check(files: tuple[Path, ...], chart_values: bool, output: str, strict: bool, differences: bool) -> None:
    """Find every mistake in config files, with its line. FILE may be - for standard input.

    Templates and regular expressions are tried on a sample machine of every platform. No cluster is asked.

    \b
    error    a controller or the chart refuses the file, or the key never comes out
    warning  something has no effect, or not on every platform
    differs  what the file does here and not in the reference controller

    \b
    Exit status:
      0  no errors (with --strict: no warnings either)
      1  errors
      2  a file could not be read, or the command line is wrong

    \b
    Examples:
      talos-ccm config check ccm-config.yaml
      talos-ccm config check --chart-values values.yaml
      talos-ccm config check --strict --no-differences clusters/*/ccm-config.yaml
      kubectl -n kube-system get configmap talos-cloud-controller-manager \\
        -o jsonpath='{.data.ccm-config\\.yaml}' | talos-ccm config check -
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    try:
        from cli.config.check_files import check_files  # noqa: PLC0415 - `--help` need not load all of it

        status = check_files(
            files,
            chart_values=chart_values,
            as_text=output == "text",
            strict=strict,
            differences=differences,
        )
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.exit(status)
