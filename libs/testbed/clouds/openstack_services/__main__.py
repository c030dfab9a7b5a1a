"""Starts one of the services: `NAME PORT ...`. It runs in the environment of the services, not in ours."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any


def main() -> None:
    """Import the service, and serve until the process ends."""
    gc.disable()  # imports make a million objects, and no garbage
    name = sys.argv.pop(1)
    if name == "octavia":
        _sort_attributes_by_name()
    importlib.import_module(f"{__package__}.serve_{name}").main()


def _sort_attributes_by_name() -> None:
    """Otherwise wsme parses the source of each type for their order, which takes most of Octavia's start."""
    types = importlib.import_module("wsme.types")

    def sort_attributes(_: type, attributes: list[Any]) -> None:
        attributes.sort(key=lambda attribute: attribute.key)

    types.sort_attributes = sort_attributes  # type: ignore[attr-defined]  # a module takes any attribute


if __name__ == "__main__":
    main()
