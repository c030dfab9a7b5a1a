"""The click group `talos-ccm explain`."""

from typing import Any

import click

from cli.explain.csr.command import csr
from cli.explain.node.command import node


class _ExplainGroup(click.Group):
    """A group that suggests the subcommand for a name without one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        kind, _, name = args[0].rpartition("/")  # kubectl writes node/web-1
        if self.get_command(ctx, args[0]) is None and not name.startswith("-"):
            is_request = name.startswith("csr-") or kind.startswith(("csr", "certificatesigningrequest"))
            kinds = ("csr", "node") if is_request else ("node", "csr")
            first, second = (f"  talos-ccm explain {each} {name}" for each in kinds)
            ctx.fail(f"'{args[0]}' is not a subcommand. Did you mean one of these?\n{first}\n{second}")
        return super().resolve_command(ctx, args)


@click.group(cls=_ExplainGroup, short_help="Explain the state of a Node or a certificate signing request.")
def explain() -> None:
    """Explain the state of a Node or a certificate signing request."""


explain.add_command(csr)
explain.add_command(node)
