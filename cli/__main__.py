"""`talos-ccm`: the command line for operators."""

import errno
from typing import Any

import click

from cli.config.command import config
from cli.demo.command import demo
from cli.doctor.command import doctor
from cli.explain.command import explain
from cli.inside.command import inside
from cli.render.command import render
from cli.status.command import status


class _UnavailableExit(click.ClickException):
    exit_code = 2


class _CommandGroup(click.Group):
    """A group that suggests `config check` for check-config.

    It reports a failed write of its output, such as a full disk, with exit status 2.
    """

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        words = set(args[0].split("-"))
        for name, command in self.commands.items():
            for child in command.commands if isinstance(command, click.Group) else ():
                if words == {name, child}:
                    ctx.fail(f"No such command '{args[0]}'. Did you mean '{name} {child}'?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise
            raise _UnavailableExit(f"cannot write the output: {error.strerror}") from error


@click.group(
    cls=_CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="talos-ccm")
def main() -> None:
    """Inspect and troubleshoot this cloud controller manager for Talos.

    This command does not run the controller. Start the services with `python -m services` (all in one
    process) or `python -m services.<name>`.
    """


for command in (demo, render, config, explain, status, doctor, inside):
    main.add_command(command)

if __name__ == "__main__":
    main()
