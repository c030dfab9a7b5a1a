"""Validates --authorization-always-allow-paths: every path of the health port is open to every caller."""

from collections.abc import Iterator, Sequence
from typing import Final

OPEN_PATHS: Final = ("/healthz", "/livez", "/readyz", "/metrics")


def list_protected_paths(allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the paths that the reference would protect, given the flag's paths and `/prefix*` patterns."""
    patterns = [pattern.removeprefix("/") for pattern in allowed]
    return tuple(path for path in OPEN_PATHS if not any(_matches(path[1:], each) for each in patterns))


def validate_open_paths(allowed: Sequence[str]) -> Iterator[str]:
    """Yield why the flag is invalid, nothing if it is valid."""
    protected = list_protected_paths(allowed)
    if protected:
        yield (
            f"--authorization-always-allow-paths lacks {', '.join(protected)}, and no path can be "
            f"protected here: every caller may get {', '.join(OPEN_PATHS)}. List all of them, and "
            "restrict the callers with a NetworkPolicy"
        )


def _matches(path: str, pattern: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern
