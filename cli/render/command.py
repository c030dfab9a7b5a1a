"""The click command `talos-ccm render`."""

import sys
from pathlib import Path
from typing import Any

import click

from cli import access_options
from cli.command_exit import EXIT_FAILED, run_command

_CONFIG = click.Path(path_type=Path)


def _print_samples(context: click.Context, _: click.Parameter, is_set: bool) -> None:
    if is_set:
        from cli.render.run_render import print_samples  # noqa: PLC0415 - `--help` need not load all of it

        print_samples()
        context.exit()


@click.command(short_help="Preview the effect of a config file on nodes.")
@click.argument("file", type=_CONFIG)
@click.option(
    "--sample",
    "samples",
    multiple=True,
    metavar="PLATFORM",
    help="Use the sample of a joining node of this platform. Repeatable.",
)
@click.option("--all-samples", is_flag=True, help="Use the samples of all platforms.")
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
    type=access_options.FILE,
    metavar="FILE",
    help="Read nodes with their machine facts from this file (JSON or YAML), as written by --save-facts. "
    "Repeatable.",
)
@click.option(
    "--from-cluster",
    multiple=True,
    metavar="NODE",
    help="Use this Node of the cluster; its machine is queried over the Talos API. Repeatable.",
)
@click.option("--all-nodes", is_flag=True, help="Use all Nodes of the cluster.")
@access_options.KUBERNETES_OPTIONS
@access_options.TALOS_OPTIONS
@click.option(
    "--against",
    type=_CONFIG,
    metavar="OLD",
    help="Compare with this config file: show the effect of a change from OLD to FILE on these nodes.",
)
@access_options.output_option()
@click.option("--exit-code", is_flag=True, help="Exit with 1 if any node would change.")
@click.option(
    "--save-facts",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Save the nodes with their machine facts to this file, for --facts.",
)
def render(
    file: Path,
    against: Path | None,
    output: str,
    exit_code: bool,
    save_facts: Path | None,
    **nodes: Any,
) -> None:
    """Preview the effect of a config FILE on nodes: the matching rules with the reason, the result of each
    template, and the changes to the Node. FILE may be - for standard input.

    Nothing is changed. Only --from-cluster and --all-nodes access a cluster.

    One of --sample, --all-samples, --facts, --from-cluster or --all-nodes is required.

    With --against, the output shows only what changes from OLD to FILE. Nodes with the same changes are
    shown together.

    \b
    Exit status:
      0  success
      1  with --exit-code: at least one node would change
      2  invalid file or arguments, or a node or machine could not be read

    \b
    Examples:
      talos-ccm render ccm-config.yaml --sample hcloud
      talos-ccm render ccm-config.yaml --from-cluster web-1
      talos-ccm render new.yaml --against ccm-config.yaml --all-nodes
      talos-ccm render new.yaml --against old.yaml --facts nodes.json --exit-code
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    with run_command("Reading the nodes"):
        from cli.render.facts_file import load_samples  # noqa: PLC0415
        from cli.render.node_selection import NodeSelection  # noqa: PLC0415 - as above
        from cli.render.run_render import run_render  # noqa: PLC0415

        selection = NodeSelection(**nodes)
        _reject_invalid_options(selection, load_samples())
        if str(file) == str(against) == "-":
            raise click.UsageError("standard input can be used for one file only")
        is_different, is_complete = run_render(
            file, against, selection, save_facts=save_facts, as_json=output == "json"
        )
        sys.exit(int(exit_code and is_different) if is_complete else EXIT_FAILED)


def _reject_invalid_options(selection: Any, known: dict[str, Any]) -> None:
    if not selection.is_any_selected:
        raise click.UsageError(
            "no nodes selected: use --sample PLATFORM, --all-samples, --facts FILE, --from-cluster NODE "
            "or --all-nodes"
        )
    if odd := [name for name in selection.from_cluster if name.startswith("-")]:  # no Node has such a name
        raise click.UsageError(f"--from-cluster needs the name of a Node, not {odd[0]}")
    unknown = [name for name in selection.samples if name not in known]
    if unknown:
        raise click.UsageError(f"--sample {unknown[0]}: no such platform; available: {', '.join(known)}")
