"""How `make test` gives files to its workers: the longest first, and those that share something together."""

from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# The files that take longest, as last measured, each with all that is run together with it. Other files
# follow suite by suite. The files of tests/unit come last: they only compute.
_LONGEST: Final = (
    "real/openstack/test_octavia_balancers",
    "observe/test_alerts_fire",
    "observe/test_alerts_fire_of_the_flow",
    "integration/test_lifecycle_kubernetes",
    "integration/test_kube_reflector",
    "integration/test_migration",
    "integration/test_bench",
    "integration/clouds/test_cloud_schedules",
    "contract/test_kube_watch",
    "integration/test_chaos_run",
    "integration/test_nats_cluster",
    "integration/test_demo",
    "integration/test_ownership",
    "deploy/test_chart_install",
    "deploy/test_talos_patches",
    "contract/test_bus_conformance",
    "flow/clouds/test_balancer_flow",
    "integration/test_stuck_nodes",
    "integration/clouds/test_balancer_conformance",
    "integration/hostile/test_hostile_machine",
    "flow/test_watcher_publishing",
    "observe/test_dashboards",
    "flow/test_ipam_flow",
    "flow/test_watcher_flow",
    "flow/test_metadata_rules",
    "deploy/test_permissions",
    "integration/hostile/test_hostile_service",
)
_SUITES: Final = (
    "deploy",
    "observe",
    "real",
    "integration",
    "contract",
    "flow",
    "model",
    "architecture",
    "fuzz",
    "unit",
)
_TESTS: Final = Path(__file__).parent
_FROM_THE_END: Final = 2  # of three workers; the third, so that two workers both begin with the first files
# Files that one worker runs, because they share what takes long to make: the API servers of
# tests/contract/conftest.py, real and simulated; Neutron and Octavia; and the syntax trees of
# tests/architecture/sources.py.
_TOGETHER: Final = {
    "tests/contract/test_console_login": "API servers",
    "tests/contract/test_kube_": "API servers",
    "tests/contract/test_interface": "sources",
    "tests/architecture/": "sources",
    "tests/real/openstack/": "OpenStack",
}


# What uses the control plane of tests/conftest.py, which takes two seconds of a core to start, and two in
# each minute until it is paused. So only the first workers run it, before all other files.
_CONTROL_PLANES: Final = 2
_ON_CONTROL_PLANE: Final = (
    "API servers",
    "deploy/test_chart_install",
    "deploy/test_chart_valid",
    "deploy/test_migration_in_place",
    "integration/clouds/test_balancer_conformance",
    "integration/clouds/test_cloud_schedules",
    "integration/clouds/test_route_",
    "integration/console/",
    "integration/hostile/test_hostile_machine",
    "integration/test_all_in_one",
    "integration/test_bench",
    "integration/test_bootstrap_kubernetes",
    "integration/test_chaos_run",
    "integration/test_csr_",
    "integration/test_exec.",
    "integration/test_kube_requests",
    "integration/test_kubeconfig",
    "integration/test_labeler_",
    "integration/test_main_job",
    "integration/test_migration",
    "integration/test_ownership",
    "integration/test_watcher_",
)


class ByServers(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A file is run by one worker, and so are all files that share something.

    One worker in three begins with the last files. They use the cores while the first ones wait for servers.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        index = self.nodes.index(node)
        waiting = list(reversed(self.workqueue) if index % 3 == _FROM_THE_END else self.workqueue)
        own = (scope for scope in waiting if _needs_control_plane(scope) == (index < _CONTROL_PLANES))
        self.workqueue.move_to_end(next(own, waiting[0]), last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        shared = (name for start, name in _TOGETHER.items() if nodeid.startswith(start))
        return next(shared, None) or super()._split_scope(nodeid)


def _needs_control_plane(scope: str) -> bool:
    return scope.removeprefix("tests/").startswith(_ON_CONTROL_PLANE)


def turn_of(item: pytest.Item) -> tuple[int, int]:
    """The sort key of an item; items of one file keep their order."""
    path = item.path.relative_to(_TESTS).with_suffix("")
    suite, name = path.parts[0], path.as_posix()
    length = _LONGEST.index(name) if name in _LONGEST else len(_LONGEST)
    return length, _SUITES.index(suite) if suite in _SUITES else len(_SUITES)
