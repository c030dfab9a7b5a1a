"""Flags that have a new name. Version 0.3 removes the old names, and with them this table."""

from collections.abc import Iterable, Iterator
from typing import Final

REMOVED_IN: Final = "0.3"
OLD_NAMES: Final = {  # new name -> old name
    "metadata-republish-interval": "metadata-repeat-period",
    "talos-max-concurrent-queries": "talos-concurrent-looks",
    "talos-query-timeout": "talos-look-deadline",
    "talos-resync-period": "talos-watched-look-period",
}


def list_spellings(flag: str) -> tuple[str, ...]:
    """Return the name of a flag, and its old name if it has one."""
    return (flag, OLD_NAMES[flag]) if flag in OLD_NAMES else (flag,)


def validate_spellings(given: Iterable[str]) -> Iterator[str]:
    """Yield a mistake for each flag that is given under both names."""
    names = frozenset(given)
    for new, old in OLD_NAMES.items():
        if {new, old} <= names:
            yield f"--{old} and --{new} are the same flag: remove --{old}, the old name"


def list_deprecations(given: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each given old name."""
    names = frozenset(given)
    for new, old in OLD_NAMES.items():
        if old in names:
            yield f"--{old} is deprecated and will be removed in version {REMOVED_IN}: use --{new}"
