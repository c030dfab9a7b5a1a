"""Pipeline: do messages move from service to service, and where do they stay."""

from __future__ import annotations

from typing import Final

from libs.testbed.dashboards.panels import (
    ANY_IS_BAD,
    ORANGE,
    RED,
    Board,
    Query,
    quantile,
    risen,
    series,
    stat,
)

_DAY: Final = 86400

PIPELINE: Final = Board(
    name="pipeline",
    title="Pipeline",
    question="Do messages move through NATS from service to service, and where do they stay?",
    panels=(
        stat(
            "Dead letters",
            "max(talosccm_dead_letters_lying)",
            good="0.",
            bad="messages that a service gave up on lie there, each with its reason, for an hour.",
            steps=ANY_IS_BAD,
            alerts=("TalosCCMDeadLetters",),
        ),
        stat(
            "Longest standstill",
            "max(talosccm_queue_stalled_seconds)",
            good="0, or a few seconds: in each queue something waits and something is acknowledged.",
            bad="minutes: whoever is to handle that queue does not.",
            unit="s",
            steps=((30, ORANGE), (90, RED)),
            alerts=("TalosCCMConsumerStalled",),
        ),
        stat(
            "Messages that wait",
            "sum(max by (durable) (talosccm_queue_pending))",
            good="0 but for moments.",
            bad="a number that grows: more comes in than is handled.",
            steps=((1000, ORANGE), (10000, RED)),
        ),
        stat(
            "Stream in use",
            "max(talosccm_stream_bytes / (talosccm_stream_max_bytes > 0)) or 0 * max(talosccm_stream_bytes)",
            good="below 60 %.",
            bad="close to 100 %: nothing can be published into a full stream.",
            unit="percentunit",
            steps=((0.6, ORANGE), (0.8, RED)),
            decimals=1,
            alerts=("TalosCCMStreamAlmostFull",),
        ),
        stat(
            "Refused by NATS",
            "sum(increase(talosccm_nats_permission_violations_total[$__range]))",
            good="0 in the chosen time.",
            bad="above 0: a service tries what its key may not, or a key is misused.",
            steps=ANY_IS_BAD,
            decimals=0,
            alerts=("TalosCCMPermissionViolations",),
        ),
        stat(
            "NATS' certificates end in",
            "min(talosccm_nats_certificate_expires_timestamp_seconds > 0) - time()",
            good="more than 90 days; the keeper renews them before.",
            bad="less: nothing renews them.",
            unit="s",
            steps=((float("-inf"), RED), (90 * _DAY, "green")),
            alerts=("TalosCCMNATSCertificateExpiring",),
            silent_because="NATS' keeper does not run, or is not scraped (port 10464): NATS of one's own.",
        ),
        series(
            "Waiting, and in hand, by queue",
            Query("max by (durable) (talosccm_queue_pending)", "{{durable}} waits"),
            Query("max by (durable) (talosccm_queue_unacknowledged)", "{{durable}} in hand"),
            good="peaks that fall back to 0.",
            bad="a line that stays up: its service is down, stuck or too slow.",
            decimals=0,
            alerts=("TalosCCMConsumerStalled",),
        ),
        series(
            "What goes wrong, by number",
            Query(
                risen("talosccm_events_handled_total", "service, outcome", 'outcome!="handled"'),
                "{{service}}: {{outcome}}",
            ),
            Query(
                risen("talosccm_redelivered_total", "service"),
                "{{service}}: redelivered",
            ),
            Query(
                risen("talosccm_published_total", "outcome", 'outcome=~"failed|stream_full|unreadable"'),
                "not published: {{outcome}}",
            ),
            good="nothing; `retried` while a machine cannot be asked.",
            bad="put_aside, stream_full, or redelivered without end.",
            decimals=0,
            alerts=("TalosCCMDeadLetters",),
            silent_because="nothing has gone wrong since the services started.",
        ),
        series(
            "Age of a message when its handling begins (99 %)",
            Query(
                quantile(0.99, "talosccm_hop_latency_seconds", "service, event"),
                "{{service}} {{event}}",
                exemplars=True,
            ),
            good="milliseconds.",
            bad="seconds while little waits: a slow NATS or a starved process. With much waiting: load.",
            unit="s",
            steps=((1, ORANGE), (10, RED)),
        ),
        series(
            "Time that handling takes (99 %)",
            Query(
                quantile(0.99, "talosccm_event_handling_duration_seconds", "service, event"),
                "{{service}} {{event}}",
                exemplars=True,
            ),
            good="tens of milliseconds.",
            bad="seconds: the Kubernetes API is slow. The dots lead to traces.",
            unit="s",
            steps=((1, ORANGE), (10, RED)),
        ),
        series(
            "Messages handled",
            Query(
                "sum by (service, event) (rate(talosccm_events_handled_total[$__rate_interval]))",
                "{{service}} {{event}}",
            ),
            good="it follows what happens in the cluster, and every re-sync is a small hump.",
            bad="nothing at all while messages wait.",
            unit="cps",
            stacked=True,
        ),
        series(
            "Lateness of the event loops (99 %), and processors in use",
            Query(
                quantile(0.99, "talosccm_event_loop_lag_seconds", "pod, instance"),
                "{{pod}} {{instance}} late (s)",
            ),
            Query(
                "sum by (pod, instance) (rate(process_cpu_seconds_total[$__rate_interval]))",
                "{{pod}} {{instance}} processors",
            ),
            good="late by less than 50 ms, and well below one processor.",
            bad="late by half a second: the process has too little CPU, look at its limits.",
            unit="none",
            steps=((0.5, ORANGE), (1, RED)),
            alerts=("TalosCCMEventLoopLag",),
        ),
    ),
)
