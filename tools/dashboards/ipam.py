"""IPAM: do the pools have room, and does every node have its pod CIDRs."""

from __future__ import annotations

from typing import Final

from tools.dashboards import panels

_USAGE: Final = "max by (clusterCIDR) (node_ipam_controller_cidrset_usage_cidrs)"
_BLOCKS: Final = "max by (clusterCIDR) (node_ipam_controller_cirdset_max_cidrs)"
_FULL: Final = ((0.75, panels.ORANGE), (0.9, panels.RED))
_OFF: Final = "ipam does not allocate pod CIDRs here (--allocate-node-cidrs is off)."

IPAM: Final = panels.Board(
    name="ipam",
    title="IPAM",
    question="Do the pools have room, and does every node have its pod CIDRs, from ipam only?",
    panels=(
        panels.make_stat(
            "Nodes with no block left",
            "max(talosccm_ipam_exhausted_nodes)",
            good="0.",
            bad="above 0: the pools are full, and pods on these nodes get no address.",
            steps=panels.ANY_IS_BAD,
            alerts=("TalosCCMIPAMExhausted",),
        ),
        panels.make_stat(
            "Fullest pool",
            "max(node_ipam_controller_cidrset_usage_cidrs)",
            good="below 75 %.",
            bad="above 90 %: add a network to the pool before it is full.",
            unit="percentunit",
            steps=_FULL,
            decimals=1,
            alerts=("TalosCCMIPAMPoolAlmostFull",),
            silent_because=_OFF,
        ),
        panels.make_stat(
            "Nodes without pod CIDRs",
            "sum(max by (outcome) (talosccm_ipam_waiting_nodes)) or 0 * max(talosccm_ipam_exhausted_nodes)",
            good="0, or a number that falls while nodes join.",
            bad="a number that does not fall: see the panel by outcome.",
            steps=panels.ANY_IS_A_WARNING,
        ),
        panels.make_total(
            "CIDRs by other allocators",
            "talosccm_ipam_foreign_nodes_total",
            good="0 in the selected time range.",
            bad="above 0: another allocator runs, and both may assign the same block.",
            steps=panels.ANY_IS_BAD,
            alerts=("TalosCCMIPAMForeignAllocator",),
        ),
        panels.make_stat(
            "Conflicts",
            "max(talosccm_ipam_conflicts)",
            good="0.",
            bad="above 0: pod CIDRs of nodes overlap or are invalid. `talos-ccm status ipam` lists them.",
            steps=panels.ANY_IS_BAD,
        ),
        panels.make_stat(
            "Blocks in quarantine",
            "max(talosccm_ipam_quarantined_cidrs)",
            good="a few, of deleted nodes: they become free after the quarantine.",
            bad="as many as a full pool lacks.",
            steps=panels.NEUTRAL,
        ),
        panels.Panel(
            kind="bargauge",
            title="Pools",
            good="green.",
            bad="red: almost full, counting blocks in quarantine.",
            queries=(panels.Query(_USAGE, "{{clusterCIDR}}"),),
            unit="percentunit",
            steps=_FULL,
            highest=1,
            decimals=1,
            alerts=("TalosCCMIPAMPoolAlmostFull",),
            silent_because=_OFF,
        ),
        panels.make_time_series(
            "Free blocks",
            panels.Query(f"{_BLOCKS} * (1 - {_USAGE}) < 1e6", "{{clusterCIDR}}"),
            good="more than the nodes that will join. The panel omits pools with a million or more.",
            bad="a line that falls towards 0.",
            decimals=0,
            alerts=("TalosCCMIPAMExhausted",),
            silent_because=_OFF,
        ),
        panels.make_time_series(
            "Nodes without pod CIDRs by outcome",
            panels.Query("max by (outcome) (talosccm_ipam_waiting_nodes)", "{{outcome}}"),
            panels.Query("max(talosccm_ipam_exhausted_nodes)", "no block left"),
            good="waiting, for a moment.",
            bad="unserved: an operator must act. The Node's Events have the reason.",
            decimals=0,
            alerts=("TalosCCMIPAMExhausted",),
        ),
        panels.make_time_series(
            "Claimed and released blocks",
            panels.build_increase(
                "node_ipam_controller_cidrset_cidrs_allocations_total",
                "{{clusterCIDR}} claimed",
                "clusterCIDR",
            ),
            panels.build_increase(
                "node_ipam_controller_cidrset_cidrs_releases_total", "{{clusterCIDR}} released", "clusterCIDR"
            ),
            panels.Query("sum(increase(talosccm_ipam_nodes_served_total[$__rate_interval]))", "nodes served"),
            good="rates that follow joining and leaving nodes.",
            bad="claims while no node joins.",
            decimals=0,
            silent_because=_OFF,
        ),
        panels.make_time_series(
            "Blocks tried until one was free (p99)",
            panels.build_quantile(
                0.99,
                "node_ipam_controller_cidrset_allocation_tries_per_request",
                "{{clusterCIDR}}",
                "clusterCIDR",
                exemplars=False,
            ),
            good="few.",
            bad="hundreds: the pool is almost full.",
            steps=((125, panels.ORANGE), (625, panels.RED)),
            silent_because="no claim in the interval of a point.",
        ),
        panels.make_time_series(
            "Handling duration of ipam (p99)",
            panels.build_quantile(
                0.99, "talosccm_event_handling_duration_seconds", "{{event}}", "event", 'service="ipam"'
            ),
            good="tens of milliseconds, for two writes of a ConfigMap and one of the Node.",
            bad="seconds: writes fail or are slow.",
            **panels.in_seconds(1, 10),
        ),
    ),
)
