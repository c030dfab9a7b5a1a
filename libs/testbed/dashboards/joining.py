"""How long joining nodes take: a panel of two boards."""

from __future__ import annotations

from typing import Final

from libs.testbed.dashboards.panels import ORANGE, RED, Query, quantile, series

DELAY: Final = "node_controller_cloud_provider_taint_removal_delay_seconds"

UNTIL_USABLE: Final = series(
    "From a node's creation until it was usable",
    Query(quantile(0.5, DELAY), "half of them within", exemplars=True),
    Query(quantile(0.99, DELAY), "99 % within", exemplars=True),
    good="seconds, most of which the kubelet takes. The buckets are 1, 4, 16, 64 s.",
    bad="minutes. The dots are single nodes, and lead to their traces where tracing is on.",
    unit="s",
    steps=((64, ORANGE), (256, RED)),
    alerts=("TalosCCMTimeToReadySlow",),
    silent_because="no node became usable within the time of a point.",
)
