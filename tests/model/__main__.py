"""Searches all models, and describes what the search finds without each rule: `make model`.

An argument is the number of faults of the hand-over. Without a rule, one fault is enough.
"""

import sys
import time

from msgspec.structs import asdict, replace

from tests.model import approval, handover
from tests.model.clouds import cloud_models
from tests.model.handover_state import Rules
from tests.model.search import Model, StateT, search


def main(faults: int) -> None:
    """Print one result per search."""
    report(f"hand-over, {faults} faults", handover.build_model(Rules(), faults=faults))
    slow = handover.build_model(Rules(), faults=0, renewals=1, is_follower_slow=True)
    report("hand-over with a slow follower", slow)
    for rule in asdict(Rules()):
        without = replace(Rules(), **{rule: False})
        report(f"hand-over without {rule}", handover.build_model(without, faults=min(faults, 1)))
    report("approval", approval.build_model(approval.Rules(), faults=2))
    for rule in asdict(approval.Rules()):
        weaker = replace(approval.Rules(), **{rule: False})
        report(f"approval without {rule}", approval.build_model(weaker, faults=2))
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
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
