"""Runs many large schedules of balancers, each once: `python -m tests.model.clouds.balancer_run SEEDS FILE`.

A line of the file is a schedule that has ended; an interrupted run continues after them.
"""

import logging
import sys
from collections import Counter
from pathlib import Path

import msgspec

from tests.model.clouds.balancer_cluster import Scale
from tests.model.clouds.balancer_schedule import Result, run_in_a_folder

LARGE = Scale(services=20, nodes=10, groups=2)


def main(seeds: int, file: Path, services: int = LARGE.services, nodes: int = LARGE.nodes) -> int:
    """Run what the file lacks, and print the sums; whether a schedule found something."""
    logging.disable()
    scale = msgspec.structs.replace(LARGE, services=services, nodes=nodes, groups=max(1, nodes // 10))
    lines = file.read_bytes().splitlines() if file.exists() else []
    results = {each.seed: each for each in (msgspec.json.decode(line, type=Result) for line in lines)}
    for seed in range(seeds):
        if seed not in results:
            result = results[seed] = run_in_a_folder(seed, scale)
            kept = result if result.wrong else msgspec.structs.replace(result, story=[])
            with file.open("ab") as output:
                output.write(msgspec.json.encode(kept) + b"\n")
            print(f"seed {seed}: {result.wrong or 'nothing wrong'}", flush=True)  # noqa: T201 - the output
    counts: Counter[str] = Counter()
    for each in results.values():
        counts.update(each.counts)
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")  # noqa: T201 - the command's output
    return int(any(each.wrong for each in results.values()))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])))
