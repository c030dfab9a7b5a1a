"""Searches both models, and describes what the search finds without each rule: `python -m tests.model`.

An argument is the number of faults of the hand-over; each further one takes about a hundred times as long.
"""

import sys

from msgspec.structs import asdict, replace

from tests.model import approval, handover
from tests.model.handover_state import Rules
from tests.model.search import search


def main(faults: int) -> None:
    """Print one result per search."""
    report("hand-over", str(search(handover.build_model(Rules(), faults=faults))))
    slow = handover.build_model(Rules(), faults=0, renewals=1, is_follower_slow=True)
    report("hand-over with a slow follower", str(search(slow)))
    for rule in asdict(Rules()):
        without = replace(Rules(), **{rule: False})
        report(f"hand-over without {rule}", str(search(handover.build_model(without, faults=faults))))
    report("approval", str(search(approval.build_model(approval.Rules(), faults=2))))
    for rule in asdict(approval.Rules()):
        weaker = replace(approval.Rules(), **{rule: False})
        report(f"approval without {rule}", str(search(approval.build_model(weaker, faults=2))))


def report(what: str, result: str) -> None:
    """Write one result."""
    print(f"{what}: {result}\n", flush=True)  # noqa: T201 - the command's output


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
