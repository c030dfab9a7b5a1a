"""How long joining nodes take: a panel of two dashboards."""

from __future__ import annotations

from typing import Final

from tools.dashboards import panels

DELAY: Final = "node_controller_cloud_provider_taint_removal_delay_seconds"

UNTIL_USABLE: Final = panels.make_time_series(
    "Time from a node's creation until it is usable",
    panels.build_quantile(0.5, DELAY, "p50"),
    panels.build_quantile(0.99, DELAY, "p99"),
    good="seconds, most of them spent in the kubelet. The buckets are 1, 4, 16, 64 s.",
    bad="minutes. Each dot is one node and links to its trace, if tracing is on.",
    **panels.in_seconds(64, 256),
    alerts=("TalosCCMTimeToReadySlow",),
    silent_because="no node became usable in the interval of a point.",
)
