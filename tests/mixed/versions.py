"""Which processes are old and which are new in each run, and which scenarios run."""

from __future__ import annotations

from typing import Final

import msgspec

from libs.common.contract.services import SERVICES

NAMES: Final = tuple(wiring.service for wiring in SERVICES)
# Every scenario starts one process per service, on NATS: an all-in-one process has one version only.
SCENARIOS: Final = (
    # a Node joins, is labelled and gets its certificate; csr and metadata crash meanwhile
    ("services_on_simulated", "nodes_that_join_a_simulated_api_server_become_usable[separate-processes]"),
    ("csr_services", "a_node_that_joins_gets_the_certificate_that_it_asks_for[separate-processes]"),
    ("csr_scenarios", "requests_are_issued_once_each_while_csr_and_metadata_are_killed_in_between"),
    # pod CIDRs: one process, of old and new replicas, after the stream was lost
    ("ipam_services", "nodes_that_join_get_disjoint_pod_cidrs_of_both_families[separate-processes]"),
    ("ipam_services", "three_replicas_share_the_work_and_two_of_them_finish_it_when_one_is_killed"),
    ("ipam_services", "nats_that_loses_everything_in_the_middle_leads_to_no_second_block"),
    # the --cloud-config file changes
    (
        "ownership_services",
        "a_node_of_anothers_is_as_its_kubelet_left_it_until_the_file_gives_it_to_us[separate-processes]",
    ),
)
# Deletion by lifecycle needs a control plane that marks Nodes as not ready.
DELETION: Final = (
    "lifecycle_kubernetes",
    "the_node_of_a_machine_that_was_replaced_is_deleted_and_no_other[separate-processes]",
)
_IN_DELETION: Final = ("watcher", "metadata", "lifecycle")


class VersionSet(msgspec.Struct, frozen=True, kw_only=True):
    """One run: these processes are old, all others are new."""

    name: str  # such as "csr-old" or "csr-new"
    old: tuple[str, ...]
    scenarios: tuple[str, ...]  # ids of tests


def version_sets() -> tuple[VersionSet, ...]:
    """Each service old among new ones, then new among old ones."""
    return tuple(
        VersionSet(
            name=f"{service}-{version}",
            old=tuple(name for name in NAMES if (name == service) == (version == "old")),
            scenarios=_scenarios(service),
        )
        for service in NAMES
        for version in ("old", "new")
    )


def _scenarios(service: str) -> tuple[str, ...]:
    with_deletion = (DELETION,) if service in _IN_DELETION else ()
    # No other scenario starts lifecycle.
    chosen = with_deletion if service == "lifecycle" else (*SCENARIOS, *with_deletion)
    return tuple(f"tests/integration/test_{file}.py::test_{test}" for file, test in chosen)
