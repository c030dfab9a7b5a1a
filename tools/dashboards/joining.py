"""How long joining nodes take: a panel of two dashboards."""

from __future__ import annotations

from typing import Final

from tools.dashboards.panels import ORANGE, RED, Query, build_quantile, make_time_series

DELAY: Final = "node_controller_cloud_provider_taint_removal_delay_seconds"

UNTIL_USABLE: Final = make_time_series(
    "Time from a node's creation until it is usable",
    Query(build_quantile(0.5, DELAY), "p50", exemplars=True),
    Query(build_quantile(0.99, DELAY), "p99", exemplars=True),
    good="seconds, most of them spent in the kubelet. The buckets are 1, 4, 16, 64 s.",
    bad="minutes. Each dot is one node and links to its trace, if tracing is on.",
    unit="s",
    steps=((64, ORANGE), (256, RED)),
    alerts=("TalosCCMTimeToReadySlow",),
    silent_because="no node became usable in the interval of a point.",
)
