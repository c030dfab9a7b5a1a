"""Pipeline: do messages pass from service to service, and where do they stop."""

from __future__ import annotations

from typing import Final

from tools.dashboards import panels

_DAY: Final = 86400

PIPELINE: Final = panels.Board(
    name="pipeline",
    title="Pipeline",
    question="Do messages pass through NATS from service to service, and where do they stop?",
    panels=(
        panels.make_stat(
            "Dead letters",
            "max(talosccm_dead_letters_lying)",
            good="0.",
            bad="one or more: a service gave up on messages. The stream keeps each for an hour.",
            steps=panels.ANY_IS_BAD,
            alerts=("TalosCCMDeadLetters",),
        ),
        panels.make_stat(
            "Longest queue stall",
            "max(talosccm_queue_stalled_seconds)",
            good="0, or a few seconds: messages arrive and are acknowledged.",
            bad="minutes: the service of that queue does not process it.",
            **panels.in_seconds(30, 90),
            alerts=("TalosCCMConsumerStalled",),
        ),
        panels.make_stat(
            "Waiting messages",
            "sum(max by (durable) (talosccm_queue_pending))",
            good="0, except for moments.",
            bad="a number that grows: messages arrive faster than the services process them.",
            steps=((1000, panels.ORANGE), (10000, panels.RED)),
        ),
        panels.make_stat(
            "Stream in use",
            "max(talosccm_stream_bytes / (talosccm_stream_max_bytes > 0)) or 0 * max(talosccm_stream_bytes)",
            good="below 60 %.",
            bad="close to 100 %: a full stream rejects new messages.",
            unit="percentunit",
            steps=((0.6, panels.ORANGE), (0.8, panels.RED)),
            decimals=1,
            alerts=("TalosCCMStreamAlmostFull",),
        ),
        panels.make_total(
            "Rejected by NATS",
            "talosccm_nats_permission_violations_total",
            good="0 in the selected time range.",
            bad="above 0: a service lacks a permission, or an attacker uses its key.",
            steps=panels.ANY_IS_BAD,
            alerts=("TalosCCMPermissionViolations",),
        ),
        panels.make_stat(
            "NATS certificate expiry",
            "min(talosccm_nats_certificate_expires_timestamp_seconds > 0) - time()",
            good="more than 90 days; the keeper renews the server's certificate before that.",
            bad="less: the renewal fails.",
            unit="s",
            steps=((float("-inf"), panels.RED), (90 * _DAY, "green")),
            alerts=("TalosCCMNATSCertificateExpiring",),
            silent_because="no NATS keeper runs (your own NATS server), or its port 10464 is not scraped.",
        ),
        panels.make_time_series(
            "Waiting and unacknowledged messages by queue",
            panels.Query("max by (durable) (talosccm_queue_pending)", "{{durable}} waiting"),
            panels.Query("max by (durable) (talosccm_queue_unacknowledged)", "{{durable}} unacknowledged"),
            good="peaks that fall back to 0.",
            bad="a line that does not fall: its service is down, stuck or too slow.",
            decimals=0,
            alerts=("TalosCCMConsumerStalled",),
        ),
        panels.make_time_series(
            "Retries, redeliveries and failed publishes",
            panels.build_increase(
                "talosccm_events_handled_total",
                "{{service}}: {{outcome}}",
                "service, outcome",
                'outcome!="handled"',
            ),
            panels.build_increase("talosccm_redelivered_total", "{{service}}: redelivered", "service"),
            panels.build_increase(
                "talosccm_published_total",
                "not published: {{outcome}}",
                "outcome",
                'outcome=~"failed|stream_full|unreadable"',
            ),
            good="no data; `retried` while a machine does not answer.",
            bad="put_aside, stream_full, or redelivered that does not end.",
            decimals=0,
            alerts=("TalosCCMDeadLetters",),
            silent_because="no such event since the services started.",
        ),
        panels.make_time_series(
            "Message age at the start of handling (p99)",
            panels.build_quantile(
                0.99, "talosccm_hop_latency_seconds", "{{service}} {{event}}", "service, event"
            ),
            good="milliseconds.",
            bad="seconds: a slow NATS or a process without CPU if few messages wait, otherwise high load.",
            **panels.in_seconds(1, 10),
        ),
        panels.make_time_series(
            "Handling duration (p99)",
            panels.build_quantile(
                0.99, "talosccm_event_handling_duration_seconds", "{{service}} {{event}}", "service, event"
            ),
            good="tens of milliseconds.",
            bad="seconds: the Kubernetes API is slow. The dots link to traces.",
            **panels.in_seconds(1, 10),
        ),
        panels.make_time_series(
            "Messages handled",
            panels.build_rate("talosccm_events_handled_total", "{{service}} {{event}}", "service, event"),
            good="a rate that follows the changes in the cluster, with a small rise at each resync.",
            bad="0 while messages wait.",
            unit="cps",
            stacked=True,
        ),
        panels.make_time_series(
            "Event loop lag (p99) and CPU use",
            panels.build_quantile(
                0.99,
                "talosccm_event_loop_lag_seconds",
                "{{pod}} {{instance}} lag (s)",
                "pod, instance",
                exemplars=False,
            ),
            panels.build_rate("process_cpu_seconds_total", "{{pod}} {{instance}} CPUs", "pod, instance"),
            good="lag below 50 ms, and well below one CPU.",
            bad="lag of half a second: the process has too little CPU. Check its limits.",
            unit="none",
            steps=((0.5, panels.ORANGE), (1, panels.RED)),
            alerts=("TalosCCMEventLoopLag",),
        ),
    ),
)
