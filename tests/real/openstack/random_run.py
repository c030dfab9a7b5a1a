"""Runs random schedules at Octavia and Neutron: `python -m tests.real.openstack.random_run SEEDS FILE`.

Optional: the numbers of Services and Nodes. An interrupted run continues, as that of other clouds does.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from libs.common.client_tls import without_system_authorities
from libs.testbed.clouds.openstack_services.services import OpenStackServices
from tests.model.clouds.balancer_run import run_schedules
from tests.real.openstack.random_cluster import OpenStackRandomCluster


async def main(seeds: int, file: Path, services: int = 20, nodes: int = 10) -> int:
    """Start both services, and run what the file lacks; whether a schedule found something."""
    with tempfile.TemporaryDirectory() as folder, without_system_authorities():
        async with OpenStackServices.start(Path(folder)) as openstack:
            cluster = OpenStackRandomCluster.of(openstack)
            return await asyncio.to_thread(run_schedules, cluster, seeds, file, services, nodes)


if __name__ == "__main__":
    seeds, path, *numbers = sys.argv[1:]
    sys.exit(asyncio.run(main(int(seeds), Path(path), *map(int, numbers))))
