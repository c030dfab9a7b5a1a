"""Starts one of the services: `NAME PORT ...`. It runs in the environment of the services, not in ours."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any


def main() -> None:
    """Import the service, and serve until the process ends."""
    gc.disable()  # imports make a million objects, and no garbage
    name = sys.argv.pop(1)
    _keep_connections()
    _read_parts_without_subqueries()
    if name == "octavia":
        _sort_attributes_by_name()
    importlib.import_module(f"{__package__}.serve_{name}").main()


def _keep_connections() -> None:
    """Otherwise oslo.db opens SQLite for each transaction, which reads the schema of all tables."""
    pool = importlib.import_module("sqlalchemy.pool")
    pool.NullPool = pool.QueuePool  # type: ignore[attr-defined]  # a module takes any attribute


def _read_parts_without_subqueries() -> None:
    """SQLAlchemy builds a subquery again for each read, and keeps the statements of `selectin`."""
    orm: Any = importlib.import_module("sqlalchemy.orm")

    def replace(make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if options.get("lazy") == "subquery":
            options["lazy"] = "selectin"
        return make(*arguments, **options)

    orm.relationship, orm.backref = partial(replace, orm.relationship), partial(replace, orm.backref)


def _sort_attributes_by_name() -> None:
    """Otherwise wsme parses the source of each type for their order, which takes most of Octavia's start."""
    types = importlib.import_module("wsme.types")

    def sort_attributes(_: type, attributes: list[Any]) -> None:
        attributes.sort(key=lambda attribute: attribute.key)

    types.sort_attributes = sort_attributes  # type: ignore[attr-defined]  # a module takes any attribute


if __name__ == "__main__":
    main()
