"""The click command `talos-ccm render`."""

import signal
import sys
from pathlib import Path
from typing import Any

import click

from cli import access_options

_CONFIG = click.Path(path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _print_samples(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from cli.render.run_render import print_samples  # noqa: PLC0415 - `--help` need not load all of it

        print_samples()
        context.exit()


@click.command(short_help="Show what the rules of a config file do, before they do it.")
@click.argument("file", type=_CONFIG)
@click.option(
    "--sample",
    "samples",
    multiple=True,
    metavar="PLATFORM",
    help="A joining node of that platform, from the samples that come with this command. Repeatable.",
)
@click.option("--all-samples", is_flag=True, help="A joining node of every platform.")
@click.option(
    "--list-samples",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_samples,
    help="List the samples and exit.",
)
@click.option(
    "--facts",
    multiple=True,
    type=_FILE,
    metavar="FILE",
    help="Nodes with what their machines say (JSON or YAML), as --save-facts or NodeEnriched has them. "
    "Repeatable.",
)
@click.option(
    "--from-cluster",
    multiple=True,
    metavar="NODE",
    help="A Node of the cluster as it is now; its machine is asked over the Talos API. Repeatable.",
)
@click.option("--all-nodes", is_flag=True, help="Every Node of the cluster.")
@access_options.KUBERNETES_OPTIONS
@access_options.TALOS_OPTIONS
@click.option(
    "--against",
    type=_CONFIG,
    metavar="OLD",
    help="Another config file, the one in use: show what a change from OLD to FILE would do to these nodes.",
)
@access_options.output_option()
@click.option("--exit-code", is_flag=True, help="End with 1 if any node would change.")
@click.option(
    "--save-facts",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep the nodes with what their machines say, for --facts.",
)
def render(
    file: Path,
    against: Path | None,
    output: str,
    exit_code: bool,
    save_facts: Path | None,
    **nodes: Any,
) -> None:
    """Show what the rules of a config FILE do to nodes: which rules match and why, what each template gives,
    and what would be written. FILE may be - for standard input.

    Nothing is written to a cluster, and without --from-cluster or --all-nodes none is asked.

    With --against, each node is first brought to where OLD leaves it; what FILE then changes is shown, and
    nodes with the same changes stand together.

    \b
    Exit status:
      0  shown
      1  with --exit-code: at least one node would change
      2  a file is wrong, a node or machine could not be read, or the command line is wrong

    \b
    Examples:
      talos-ccm render ccm-config.yaml --sample hcloud
      talos-ccm render ccm-config.yaml --from-cluster web-1
      talos-ccm render new.yaml --against ccm-config.yaml --all-nodes
      talos-ccm render new.yaml --against old.yaml --facts nodes.json --exit-code
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    try:
        from cli.lines import print_error  # noqa: PLC0415 - as above
        from cli.render.node_selection import NodeSelection  # noqa: PLC0415
        from cli.render.run_render import EXIT_FAILED, RenderError, RenderOptions  # noqa: PLC0415
        from cli.render.run_render import run_render as show  # noqa: PLC0415
        from cli.render.samples import load_samples  # noqa: PLC0415

        wanted = NodeSelection(**nodes)
        _reject_invalid_options(wanted, load_samples())
        if str(file) == str(against) == "-":
            raise click.UsageError("standard input holds one file: name the other one")
        asked = RenderOptions(
            file=file,
            against=against,
            selection=wanted,
            as_json=output == "json",
            exit_code=exit_code,
            save_facts=save_facts,
        )
        try:
            status = show(asked)
        except RenderError as refused:
            print_error(f"Error: {refused}")
            status = EXIT_FAILED
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.exit(status)


def _reject_invalid_options(wanted: Any, known: dict[str, Any]) -> None:
    if not wanted.is_any_selected:
        raise click.UsageError(
            "which nodes? Give --sample PLATFORM, --all-samples, --facts FILE, --from-cluster NODE or "
            "--all-nodes"
        )
    unknown = [name for name in wanted.samples if name not in known]
    if unknown:
        raise click.UsageError(f"--sample {unknown[0]}: there is none; there are {', '.join(known)}")
