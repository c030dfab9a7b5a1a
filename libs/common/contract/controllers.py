"""The controllers that --controllers and --cloud-config name, as in the reference, and which are selected."""

from collections.abc import Callable, Mapping
from typing import Final

from libs.common.contract.services import (
    ACCOUNT_CONTROLLERS,
    CONTROLLER_SERVICES,
    CSR,
    IPAM,
    LABELER,
    LIFECYCLE,
    LOAD_BALANCERS,
    ROUTES,
    Controller,
)

CLOUD_NODE: Final = LABELER.controller.name
CSR_APPROVAL: Final = CSR.controller.name
NODE_IPAM: Final = IPAM.controller.name
NODE_LIFECYCLE: Final = LIFECYCLE.controller.name
SERVICE_LB: Final = LOAD_BALANCERS.name
NODE_ROUTE: Final = ROUTES.name
_OF_NODES: Final = tuple(spec.controller for spec in CONTROLLER_SERVICES)
SELECTABLE: Final = (*_OF_NODES, *ACCOUNT_CONTROLLERS)
ALIASES: Final[Mapping[str, str]] = {alias: each.name for each in SELECTABLE for alias in each.aliases}
# All names of the controllers that work on Nodes.
NODE_CONTROLLER_NAMES: Final = (
    *(each.name for each in _OF_NODES),
    *(alias for each in _OF_NODES for alias in each.aliases),
)


def canonical_name(name: str) -> str:
    """Return the name of a controller, for that name or an alias."""
    return ALIASES.get(name, name)


# ---- the flag --controllers

_ALL_DIFFERS: Final = (
    "--controllers: `*` selects cloud-node and node-csr-approval here; in the reference it selects "
    "cloud-node and cloud-node-lifecycle. Name the controllers instead (docs/migrate.md)"
)
_IN_WILDCARD: Final = frozenset(each.name for each in SELECTABLE if each.in_wildcard)
_DISPLAY_NAMES: Final = [each.display_name for each in SELECTABLE]
CONTROLLERS: Final = tuple(sorted({*ALIASES, *ALIASES.values()}))


def is_controller_selected(items: tuple[str, ...], name: str) -> bool:
    """Return whether a --controllers list selects that controller; `name` may be an alias."""
    wanted, proper = _wanted(items), canonical_name(name)
    return wanted.get(proper, proper in _IN_WILDCARD and wanted.get("*", False))


def is_service_selected(
    items: tuple[str, ...], controller: Controller, *, is_switched_on: Callable[[str], bool]
) -> bool:
    """Whether a process with that --controllers list runs the service of this row of the service table.

    `is_switched_on` returns whether the flag of that name is set.
    """
    if controller.flag:
        is_on = is_switched_on(controller.flag)
        return _wanted(items).get(controller.name, is_on) if controller.name else is_on
    return not controller.name or is_controller_selected(items, controller.name)


def allocates_pod_cidrs(items: tuple[str, ...], *, allocate_node_cidrs: bool) -> bool:
    """Return whether pod CIDRs are allocated: by --controllers, otherwise by --allocate-node-cidrs."""
    return is_service_selected(items, IPAM.controller, is_switched_on=lambda flag: allocate_node_cidrs)


def find_controller_mistakes(items: tuple[str, ...]) -> tuple[str, ...]:
    """Validate a --controllers list: `*` = all that are on by default, `name` = on, `-name` = off."""
    mistakes = [
        f"--controllers: unknown controller {bare!r}; known are {', '.join(CONTROLLERS)}"
        for bare in (item.removeprefix("-") for item in items)
        if bare != "*" and bare not in CONTROLLERS
    ]
    if not mistakes and not any(is_controller_selected(items, each.name) for each in SELECTABLE):
        mistakes.append(
            f"--controllers={','.join(items)} selects no controller: this version has "
            f"{', '.join(_DISPLAY_NAMES[:-1])} and {_DISPLAY_NAMES[-1]}"
        )
    return tuple(mistakes)


def list_wildcard_differences(items: tuple[str, ...]) -> tuple[str, ...]:
    """Return a warning if `*` selects other controllers than in the reference, unless the list names them."""
    wanted = _wanted(items)
    if not wanted.get("*") or {CSR_APPROVAL, NODE_LIFECYCLE} <= wanted.keys():
        return ()
    return (_ALL_DIFFERS,)


def _wanted(items: tuple[str, ...]) -> dict[str, bool]:
    """Return whether each controller is on, by its canonical name, and `*`; the last entry counts."""
    bare = ((item.removeprefix("-"), not item.startswith("-")) for item in items)
    return {canonical_name(name): on for name, on in bare}
