"""IPAM: is there room in the pools, and does every node have its pod CIDRs."""

from __future__ import annotations

from typing import Final

from libs.testbed.dashboards.panels import (
    ANY_IS_A_WARNING,
    ANY_IS_BAD,
    NEUTRAL,
    ORANGE,
    RED,
    Board,
    Panel,
    Query,
    quantile,
    risen,
    series,
    stat,
)

_USAGE: Final = "max by (clusterCIDR) (node_ipam_controller_cidrset_usage_cidrs)"
_BLOCKS: Final = "max by (clusterCIDR) (node_ipam_controller_cirdset_max_cidrs)"
_FULL: Final = ((0.75, ORANGE), (0.9, RED))
_OFF: Final = "ipam gives no pod CIDRs here (--allocate-node-cidrs is off)."

IPAM: Final = Board(
    name="ipam",
    title="IPAM",
    question="Is there room in the pools, and does every node have its pod CIDRs, from us alone?",
    panels=(
        stat(
            "Nodes with no block left",
            "max(talosccm_ipam_exhausted_nodes)",
            good="0.",
            bad="above 0: the pools are used up, and pods on these nodes get no address.",
            steps=ANY_IS_BAD,
            alerts=("TalosCCMIPAMExhausted",),
        ),
        stat(
            "Fullest pool",
            "max(node_ipam_controller_cidrset_usage_cidrs)",
            good="below 75 %.",
            bad="above 90 %: add a pool before nodes find none.",
            unit="percentunit",
            steps=_FULL,
            decimals=1,
            alerts=("TalosCCMIPAMPoolAlmostFull",),
            silent_because=_OFF,
        ),
        stat(
            "Nodes without pod CIDRs",
            "sum(max by (outcome) (talosccm_ipam_waiting_nodes)) or 0 * max(talosccm_ipam_exhausted_nodes)",
            good="0, or a number that falls while nodes join.",
            bad="a number that stays: see by outcome, below.",
            steps=ANY_IS_A_WARNING,
        ),
        stat(
            "CIDRs from somebody else",
            "sum(increase(talosccm_ipam_foreign_nodes_total[$__range]))",
            good="0 in the chosen time.",
            bad="above 0: another allocator is on, and the same block may be given twice.",
            steps=ANY_IS_BAD,
            decimals=0,
            alerts=("TalosCCMIPAMForeignAllocator",),
        ),
        stat(
            "Conflicts",
            "max(talosccm_ipam_conflicts)",
            good="0.",
            bad="above 0: nodes whose pod CIDRs overlap; `talos-ccm status ipam` names them.",
            steps=ANY_IS_BAD,
        ),
        stat(
            "Blocks that rest",
            "max(talosccm_ipam_quarantined_cidrs)",
            good="a few, of nodes that have gone: they are given again after a while.",
            bad="as many as are missing in a pool that is full.",
            steps=NEUTRAL,
        ),
        Panel(
            kind="bargauge",
            title="Pools",
            good="green.",
            bad="red: almost full, with those blocks that rest.",
            queries=(Query(_USAGE, "{{clusterCIDR}}"),),
            unit="percentunit",
            steps=_FULL,
            highest=1,
            decimals=1,
            alerts=("TalosCCMIPAMPoolAlmostFull",),
            silent_because=_OFF,
        ),
        series(
            "Blocks that are free",
            Query(f"{_BLOCKS} * (1 - {_USAGE}) < 1e6", "{{clusterCIDR}}"),
            good="more than the nodes that are to come. Pools with a million and more are left out.",
            bad="a line that goes to 0.",
            decimals=0,
            alerts=("TalosCCMIPAMExhausted",),
            silent_because=_OFF,
        ),
        series(
            "Nodes without pod CIDRs, by outcome",
            Query("max by (outcome) (talosccm_ipam_waiting_nodes)", "{{outcome}}"),
            Query("max(talosccm_ipam_exhausted_nodes)", "no block left"),
            good="waiting, for a moment.",
            bad="unserved: nothing happens until somebody acts; the Node's events say what.",
            decimals=0,
            alerts=("TalosCCMIPAMExhausted",),
        ),
        series(
            "Blocks claimed and freed",
            Query(
                risen("node_ipam_controller_cidrset_cidrs_allocations_total", "clusterCIDR"),
                "{{clusterCIDR}} claimed",
            ),
            Query(
                risen("node_ipam_controller_cidrset_cidrs_releases_total", "clusterCIDR"),
                "{{clusterCIDR}} freed",
            ),
            Query("sum(increase(talosccm_ipam_nodes_served_total[$__rate_interval]))", "nodes served"),
            good="it follows joining and leaving nodes.",
            bad="claims while no node joins.",
            decimals=0,
            silent_because=_OFF,
        ),
        series(
            "Blocks looked at until one was free (99 %)",
            Query(
                quantile(0.99, "node_ipam_controller_cidrset_allocation_tries_per_request", "clusterCIDR"),
                "{{clusterCIDR}}",
            ),
            good="few.",
            bad="hundreds: the pool is almost full.",
            steps=((125, ORANGE), (625, RED)),
            silent_because="no block was claimed within the time of a point.",
        ),
        series(
            "Time that ipam takes for a message (99 %)",
            Query(
                quantile(0.99, "talosccm_event_handling_duration_seconds", "event", 'service="ipam"'),
                "{{event}}",
                exemplars=True,
            ),
            good="tens of milliseconds; two writes of a ConfigMap and one of the Node.",
            bad="seconds: writes are refused or slow.",
            unit="s",
            steps=((1, ORANGE), (10, RED)),
        ),
    ),
)
