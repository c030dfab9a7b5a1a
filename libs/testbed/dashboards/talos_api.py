"""Talos API: do machines answer, how fast, and for how long may we still ask."""

from __future__ import annotations

from typing import Final

from libs.testbed.dashboards.panels import GREEN, NEUTRAL, ORANGE, RED, Board, Query, quantile, series, stat

_CALLS: Final = "talosccm_api_request_duration_seconds"
_ERRORS: Final = "talosccm_api_request_errors_total"
_HOUR: Final = 3600

TALOS_API: Final = Board(
    name="talos-api",
    title="Talos API",
    question="Do machines answer us, how fast, and for how long may we still ask them?",
    panels=(
        stat(
            "Calls that fail",
            f"(sum(rate({_ERRORS}[$__rate_interval])) or vector(0))"
            f" / (sum(rate({_CALLS}_count[$__rate_interval])) > 0)"
            " or 0 * sum(talosccm_talos_machine_watches)",
            good="0 %, or a little while machines boot.",
            bad="more than a tenth for a quarter of an hour: a machine, a firewall, or our rights.",
            unit="percentunit",
            steps=((0.02, ORANGE), (0.1, RED)),
            decimals=1,
            alerts=("TalosCCMTalosAPIErrors",),
            width=6,
        ),
        stat(
            "Our certificate ends in",
            "min(talosccm_talos_client_certificate_expiry_timestamp_seconds > 0) - time()",
            good="more than an hour; Talos makes it for six hours and renews it an hour before its end.",
            bad="less than half an hour: it was not renewed, and then no machine can be asked.",
            unit="s",
            steps=((float("-inf"), RED), (1800, ORANGE), (_HOUR - 300, GREEN)),
            alerts=("TalosCCMTalosCertificateExpiring",),
            width=6,
        ),
        stat(
            "Machines under watch",
            "sum(talosccm_talos_machine_watches)",
            good="about as many as there are nodes.",
            bad="far fewer: changes of the others are seen at a re-sync only.",
            steps=NEUTRAL,
            width=6,
        ),
        stat(
            "Calls each second",
            f"sum(rate({_CALLS}_count[$__rate_interval]))",
            good="few: a machine is asked when it joins, changes, or is re-synced.",
            bad="a rate that stays high while nothing joins.",
            unit="reqps",
            steps=NEUTRAL,
            decimals=2,
            width=6,
        ),
        series(
            "Calls that fail, by request",
            Query(f"sum by (request) (rate({_ERRORS}[$__rate_interval]))", "{{request}}"),
            good="nothing.",
            bad="one request alone: our role or the machine's version does not allow it. All: no way to it.",
            unit="reqps",
            alerts=("TalosCCMTalosAPIErrors",),
            silent_because="no call has failed since metadata started.",
        ),
        series(
            "Share that fails, by request",
            Query(
                f"sum by (request) (rate({_ERRORS}[$__rate_interval]))"
                f" / sum by (request) (rate({_CALLS}_count[$__rate_interval]) > 0)",
                "{{request}}",
            ),
            good="below 10 %.",
            bad="above: the alert fires after a quarter of an hour.",
            unit="percentunit",
            highest=1,
            steps=((0.1, RED),),
            alerts=("TalosCCMTalosAPIErrors",),
            silent_because="no call has failed since metadata started, or none was made.",
        ),
        series(
            "Duration, half and 99 % of all calls",
            Query(quantile(0.5, _CALLS), "half within", exemplars=True),
            Query(quantile(0.99, _CALLS), "99 % within", exemplars=True),
            good="below a quarter of a second; the smallest bucket is 100 ms.",
            bad="seconds: machines are overloaded or far away. The dots lead to traces.",
            unit="s",
            steps=((1, ORANGE), (5, RED)),
            silent_because="no machine was asked within the time of a point.",
        ),
        series(
            "Duration by request (99 %)",
            Query(quantile(0.99, _CALLS, "request"), "{{request}}", exemplars=True),
            good="all alike.",
            bad="one that is slower than the others.",
            unit="s",
            steps=((1, ORANGE), (5, RED)),
            silent_because="no machine was asked within the time of a point.",
        ),
        series(
            "Calls, by request",
            Query(f"sum by (request) (rate({_CALLS}_count[$__rate_interval]))", "{{request}}"),
            good="peaks when nodes join.",
            bad="a plateau: somebody asks without end.",
            unit="reqps",
            stacked=True,
        ),
        series(
            "What became of it",
            Query(
                'sum by (event, outcome) (rate(talosccm_published_total{event=~"flow.enriched.+"}'
                "[$__rate_interval]))",
                "{{event}} {{outcome}}",
            ),
            good="published, or superseded by newer words.",
            bad="failed or stream_full: what machines said reaches nobody.",
            unit="cps",
        ),
        series(
            "Machines under watch",
            Query(
                "sum by (pod, instance) (talosccm_talos_machine_watches and on (instance)"
                " (talosccm_talos_client_certificate_expiry_timestamp_seconds > 0))",
                "{{pod}} {{instance}}",
            ),
            good="level, shared by the replicas.",
            bad="a fall to 0: connections to machines broke.",
            decimals=0,
            stacked=True,
        ),
        series(
            "Our certificate ends in",
            Query(
                "(talosccm_talos_client_certificate_expiry_timestamp_seconds > 0) - time()",
                "{{pod}} {{instance}}",
            ),
            good="a saw: it falls to an hour and is renewed.",
            bad="a line that falls below half an hour.",
            unit="s",
            alerts=("TalosCCMTalosCertificateExpiring",),
        ),
    ),
)
