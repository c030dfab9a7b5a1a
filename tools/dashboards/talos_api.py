"""Talos API: do machines answer, how fast, and how long is metadata's certificate valid."""

from __future__ import annotations

from typing import Final

from tools.dashboards import panels

_CALLS: Final = "talosccm_api_request_duration_seconds"
_ERRORS: Final = "talosccm_api_request_errors_total"
_HOUR: Final = 3600

TALOS_API: Final = panels.Board(
    name="talos-api",
    title="Talos API",
    question="Do machines answer, how fast, and how long is metadata's client certificate still valid?",
    panels=(
        panels.make_stat(
            "Failed calls",
            f"(sum(rate({_ERRORS}[$__rate_interval])) or vector(0))"
            f" / (sum(rate({_CALLS}_count[$__rate_interval])) > 0)"
            " or 0 * sum(talosccm_talos_machine_watches)",
            good="0 %, or a little more while machines boot.",
            bad="more than 10 % for 15 minutes: check machines, firewalls and metadata's role.",
            unit="percentunit",
            steps=((0.02, panels.ORANGE), (0.1, panels.RED)),
            decimals=1,
            alerts=("TalosCCMTalosAPIErrors",),
            width=6,
        ),
        panels.make_stat(
            "Client certificate expires in",
            "min(talosccm_talos_client_certificate_expiry_timestamp_seconds > 0) - time()",
            good="an hour or more. Talos issues it for six hours and renews it an hour before expiry.",
            bad="less than half an hour: Talos did not renew it. After expiry all queries fail.",
            unit="s",
            steps=((float("-inf"), panels.RED), (1800, panels.ORANGE), (_HOUR - 300, panels.GREEN)),
            alerts=("TalosCCMTalosCertificateExpiring",),
            width=6,
        ),
        panels.make_stat(
            "Watched machines",
            "sum(talosccm_talos_machine_watches)",
            good="about the number of nodes.",
            bad="far fewer: metadata notices changes of the others only at the next poll.",
            steps=panels.NEUTRAL,
            width=6,
        ),
        panels.make_stat(
            "Calls per second",
            f"sum(rate({_CALLS}_count[$__rate_interval]))",
            good="few: metadata queries a machine when it joins or changes, and at each poll.",
            bad="a rate that stays high while no node joins.",
            unit="reqps",
            steps=panels.NEUTRAL,
            decimals=2,
            width=6,
        ),
        panels.make_time_series(
            "Failed calls by request",
            panels.build_rate(f"{_ERRORS}", "{{request}}", "request"),
            good="no data.",
            bad="one request: the role or Talos version does not allow it. All: machines are unreachable.",
            unit="reqps",
            alerts=("TalosCCMTalosAPIErrors",),
            silent_because="no call has failed since metadata started.",
        ),
        panels.make_time_series(
            "Share of failed calls by request",
            panels.Query(
                f"sum by (request) (rate({_ERRORS}[$__rate_interval]))"
                f" / sum by (request) (rate({_CALLS}_count[$__rate_interval]) > 0)",
                "{{request}}",
            ),
            good="below 10 %.",
            bad="above: the alert fires after 15 minutes.",
            unit="percentunit",
            highest=1,
            steps=((0.1, panels.RED),),
            alerts=("TalosCCMTalosAPIErrors",),
            silent_because="no call has failed since metadata started, or there was no call.",
        ),
        panels.make_time_series(
            "Duration of all calls (p50, p99)",
            panels.build_quantile(0.5, _CALLS, "p50"),
            panels.build_quantile(0.99, _CALLS, "p99"),
            good="below 250 ms; the smallest bucket is 100 ms.",
            bad="seconds: machines are overloaded or far away. The dots link to traces.",
            **panels.in_seconds(1, 5),
            silent_because="no query to a machine in the interval of a point.",
        ),
        panels.make_time_series(
            "Duration by request (p99)",
            panels.build_quantile(0.99, _CALLS, "{{request}}", "request"),
            good="similar values.",
            bad="one request is slower than the others.",
            **panels.in_seconds(1, 5),
            silent_because="no query to a machine in the interval of a point.",
        ),
        panels.make_time_series(
            "Calls by request",
            panels.build_rate(f"{_CALLS}_count", "{{request}}", "request"),
            good="peaks when nodes join.",
            bad="a plateau: a part of metadata repeats queries without end.",
            unit="reqps",
            stacked=True,
        ),
        panels.make_time_series(
            "Published results by outcome",
            panels.build_rate(
                'talosccm_published_total{event=~"flow.enriched.+"}',
                "{{event}} {{outcome}}",
                "event, outcome",
            ),
            good="published, or superseded by a newer message.",
            bad="failed or stream_full: the facts of machines do not reach the other services.",
            unit="cps",
        ),
        panels.make_time_series(
            "Watched machines",
            panels.Query(
                "sum by (pod, instance) (talosccm_talos_machine_watches and on (instance)"
                " (talosccm_talos_client_certificate_expiry_timestamp_seconds > 0))",
                "{{pod}} {{instance}}",
            ),
            good="a constant number, shared by the replicas.",
            bad="a drop to 0: the connections to machines broke.",
            decimals=0,
            stacked=True,
        ),
        panels.make_time_series(
            "Client certificate expires in",
            panels.Query(
                "(talosccm_talos_client_certificate_expiry_timestamp_seconds > 0) - time()",
                "{{pod}} {{instance}}",
            ),
            good="a sawtooth: it falls to an hour, then Talos renews the certificate.",
            bad="a line that falls below half an hour.",
            unit="s",
            alerts=("TalosCCMTalosCertificateExpiring",),
        ),
    ),
)
