"""Options that several commands share: access to Kubernetes, Talos and NATS, and the output format."""

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from libs.common.go_values import parse_duration
from libs.common.settings.command_line import parse_list

CommandFunction = Callable[..., Any]
Option = Callable[[CommandFunction], CommandFunction]

FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_FLAG: Final = "flag_"  # begins the keys of options with values of a service's flags


def _combine(*options: Option) -> Option:
    """Combine options; `--help` lists them in this order."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


def parse_seconds(text: str) -> float:
    """Return the seconds of a duration such as 5m. Raises BadParameter."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not {error}") from None


def service_flag(
    service: str, name: str, metavar: str, *, help_text: str = "", bare_value: str | None = None
) -> Option:
    """Return the option with the value of a service's flag of that name; "" = not given.

    `bare_value` is the value of an option without one; None = the option needs a value.
    """
    text = f"Value of the same flag of {service}. {help_text}Default: that of the running {service}."
    # click takes an option without a value as soon as it has any flag_value, also None
    bare: dict[str, Any] = {} if bare_value is None else {"is_flag": False, "flag_value": bare_value}
    key = _FLAG + name.replace("-", "_")
    return click.option(f"--{name}", key, metavar=metavar, default="", help=text, **bare)


def pop_flags(values: dict[str, Any], kind: type[msgspec.Struct]) -> dict[str, str]:
    """Remove the flags of a service from the values of a command, and return them by their names.

    Raises UsageError for values that the service rejects.
    """
    from cli.cluster.installation import read_service_settings  # noqa: PLC0415 - for `--help`

    keys = [key for key in values if key.startswith(_FLAG)]
    flags = {key.removeprefix(_FLAG).replace("_", "-"): values.pop(key) for key in keys}
    try:
        read_service_settings(kind, flags)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return flags


def _parse_servers(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
    urls = parse_list(text)
    for url in urls:
        if "://" in url and url.partition("://")[0] not in ("nats", "tls"):
            raise click.UsageError(f'--nats-url: "{url}" is not a NATS URL such as nats://host:4222')
    return urls


def _name_option(*names: str, help_text: str) -> Option:
    """Return an option whose value is a name; "" = not given."""
    return click.option(*names, default="", metavar="NAME", help=help_text)


KUBERNETES_OPTIONS: Final = _combine(
    click.option(
        "--kubeconfig",
        type=FILE,
        help="Path to the kubeconfig file. Default: KUBECONFIG, then ~/.kube/config.",
    ),
    _name_option("--context", help_text="Kubeconfig context to use. Default: the current context."),
)
CHART_OPTIONS: Final = _combine(
    click.option(
        "--namespace",
        "-n",
        default="kube-system",
        show_default=True,
        metavar="NAME",
        help="Namespace of the Helm release.",
    ),
    _name_option("--release", help_text="Name of the Helm release, if the namespace has several."),
)
LEASE_OPTIONS: Final = _combine(
    _name_option(
        "--lease-name",
        help_text="Name of the watcher's Lease. Default: that of the running watcher.",
    ),
    _name_option("--lease-namespace", help_text="Namespace of that Lease. Default: as for --lease-name."),
)
TALOS_OPTIONS: Final = _combine(
    click.option(
        "--talosconfig",
        type=FILE,
        help="Path to the talosconfig file. Default: TALOSCONFIG, then ~/.talos/config.",
    ),
    click.option(
        "--talos-endpoints",
        default="",
        metavar="HOST,...",
        help="Control plane nodes to query Talos through. Default: TALOS_ENDPOINTS, then the endpoints "
        "of the talosconfig.",
    ),
)
NATS_OPTIONS: Final = _combine(
    click.option(
        "--nats-url",
        "nats_servers",
        default="",
        envvar="NATS_URL",
        callback=_parse_servers,
        metavar="URL,...",
        help="Connect to these NATS servers. Default: NATS_URL; without it, the command runs `talos-ccm` "
        "in the watcher's pod.",
    ),
    click.option(
        "--nats-nkey-file",
        type=FILE,
        envvar="NATS_NKEY_FILE",
        help="File with the nkey seed of the read-only NATS user. Default: NATS_NKEY_FILE.",
    ),
    click.option(
        "--nats-ca-file",
        type=FILE,
        envvar="NATS_CA_FILE",
        help="CA certificates to verify the NATS servers. Default: NATS_CA_FILE.",
    ),
)


def cloud_config_option(help_text: str) -> Option:
    """Return the option --cloud-config, a path of the services' file."""
    return click.option("--cloud-config", type=click.Path(path_type=Path), metavar="FILE", help=help_text)


def output_option(help_text: str = "Output format.") -> Option:
    """Return the option -o with the values text and json."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help=help_text,
    )
