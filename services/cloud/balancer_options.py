"""Checks the options of load balancers, by the name of the account's provider."""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from libs.clouds.hcloud.balancers.annotations import ENVIRONMENT_PREFIX, VARIABLES, Annotations, read_defaults
from libs.clouds.hcloud.balancers.desired import ROBOT_ENABLED, BalancerOptions
from libs.clouds.hcloud.hcloud_api import ID
from libs.clouds.openstack.balancers.annotations import CONFIG_KEYS
from libs.common.go_values import parse_bool

_NETWORK: Final = "HCLOUD_NETWORK"
DEFAULT_SUBNET: Final = "defaultSubnet"  # as in the config file of Thalassa's controller


def read_hcloud_options(texts: Mapping[str, str]) -> BalancerOptions:
    """Return the options of load balancers. Raises ValueError."""
    given = [name for name in texts if not name.startswith(ENVIRONMENT_PREFIX)]
    _check_names(given, {_NETWORK, ROBOT_ENABLED, *VARIABLES})
    network = texts.get(_NETWORK, "")
    if not network.isprintable() or (network.isdecimal() and not ID.fullmatch(network)):
        raise ValueError(f"{_NETWORK} is {network!r}, and not the id or name of a network")
    try:
        robot_enabled = parse_bool(texts.get(ROBOT_ENABLED, "false"))
    except ValueError as error:
        raise ValueError(f"{ROBOT_ENABLED}: {error}") from None
    defaults = read_defaults(texts)
    if isinstance(defaults, Annotations):
        return BalancerOptions(
            network=int(network) if network.isdecimal() else network or None,
            robot_enabled=robot_enabled,
            defaults=defaults,
        )
    raise ValueError("; ".join(map(str, defaults)))


def _check_names(names: Collection[str], known: Collection[str]) -> None:
    if unknown := set(names) - set(known):
        raise ValueError(f"{min(unknown)} is no option; the options are {', '.join(sorted(known))}")


# Each raises ValueError for an unknown or invalid option.
CHECKS: Final[Mapping[str, Callable[[Mapping[str, str]], object]]] = {
    "hcloud": read_hcloud_options,
    "openstack": lambda texts: _check_names(texts, CONFIG_KEYS),
    "thalassa": lambda texts: _check_names(texts, {DEFAULT_SUBNET}),
}
