"""`talos-ccm`: what an operator asks."""

import click

from cli.config.command import config
from cli.demo.command import demo
from cli.doctor.command import doctor, talos
from cli.explain.command import explain
from cli.inside.command import inside
from cli.render.command import render
from cli.status.command import status


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="talos-ccm")
def main() -> None:
    """Talos Cloud Controller Manager: see what it does, and why.

    The services themselves are `python -m services` (all in one process) and `python -m services.<name>`.
    """


for command in (demo, render, config, explain, status, doctor, inside):
    main.add_command(command)
inside.add_command(talos)

if __name__ == "__main__":
    main()
