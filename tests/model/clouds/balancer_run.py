"""Runs many large schedules of balancers, each once, at Hetzner (`hcloud`) or `thalassa`.

`python -m tests.model.clouds.balancer_run CLOUD SEEDS FILE [SERVICES NODES]`. A line of the file is a
schedule that has ended; an interrupted run continues after them.
"""

import logging
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tests.model.clouds.balancer_cluster import RandomCluster, Scale
from tests.model.clouds.balancer_schedule import Result, run_in_a_folder
from tests.model.clouds.thalassa_cluster import ThalassaCluster

CLUSTERS: Final[Mapping[str, type[RandomCluster]]] = {"hcloud": RandomCluster, "thalassa": ThalassaCluster}


def run_schedules(
    cluster: type[RandomCluster], seeds: int, file: Path, services: int = 20, nodes: int = 10
) -> int:
    """Run what the file lacks, and print the sums; whether a schedule found something."""
    logging.disable()
    # a load balancer at Hetzner has at most 25 targets
    groups = max(2, nodes // 10) if cluster.has_node_selectors else 1
    scale = Scale(
        services=services,
        nodes=nodes,
        groups=groups,
        rounds=1 + services // 100,  # the first one passes while many Services are created
        kill_rate=min(0.02, 1 / services),  # until the Lease of a crashed process expires, none writes
    )
    lines = file.read_bytes().splitlines() if file.exists() else []
    results = {each.seed: each for each in (msgspec.json.decode(line, type=Result) for line in lines)}
    for seed in range(seeds):
        if seed not in results:
            result = results[seed] = run_in_a_folder(seed, scale, cluster)
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
    sys.exit(
        run_schedules(CLUSTERS[sys.argv[1]], int(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
    )
