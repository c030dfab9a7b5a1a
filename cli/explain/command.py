"""The click group `talos-ccm explain`."""

import click

from cli.explain.csr.command import csr
from cli.explain.node.command import node


@click.group(short_help="Explain the state of a Node or a certificate signing request.")
def explain() -> None:
    """Explain the state of a Node or a certificate signing request."""


explain.add_command(csr)
explain.add_command(node)
