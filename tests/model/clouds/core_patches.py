"""Leaves a rule out of a core: other functions and constants in its modules."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def patch_core(owners: Iterable[object], values: Mapping[str, Any]) -> Iterator[None]:
    """Set these values by name in each module or class that has the name."""
    with ExitStack() as stack:
        for name, value in values.items():
            for owner in owners:
                if hasattr(owner, name):
                    stack.enter_context(patch.object(owner, name, value))
        yield
