"""Searches all models, and describes what the search finds without each rule: `make model`."""

import time

from tests.model.clouds import cloud_models
from tests.model.search import Model, StateT, search


def main() -> None:
    """Print one result per search."""
    for what, (open_model, _) in (*cloud_models.SEARCHES.items(), *cloud_models.RULES.items()):
        with open_model() as model:
            report(what, model)


def report(what: str, model: Model[StateT]) -> None:
    """Search, and write the result and the seconds that it took."""
    started = time.monotonic()
    result = search(model)
    took = time.monotonic() - started
    print(f"{what} ({took:.0f} s): {result}\n", flush=True)  # noqa: T201 - the command's output


if __name__ == "__main__":
    main()
