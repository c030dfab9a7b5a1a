"""Certificates: do kubelets get their serving certificates, and which requests were denied."""

from __future__ import annotations

from typing import Final

from tools.dashboards import panels

_OF_CSR: Final = 'service="csr"'

CERTIFICATES: Final = panels.Board(
    name="certificates",
    title="Certificates",
    question="Do kubelets get the serving certificates that they request, and which requests were denied?",
    panels=(
        panels.make_stat(
            "Age of the oldest request",
            "max(talosccm_csr_oldest_pending_age_seconds)",
            good="0, or a few seconds.",
            bad="minutes: `talos-ccm explain csr NAME` shows which check does not pass.",
            **panels.in_seconds(60, 600),
        ),
        panels.make_stat(
            "Waiting requests",
            "sum(max by (reason) (talosccm_csr_waiting)) or 0 * max(talosccm_csr_superseded)",
            good="0.",
            bad="a number that does not fall.",
            steps=panels.ANY_IS_A_WARNING,
        ),
        panels.make_stat(
            "Approved, not issued",
            "max(talosccm_csr_approved_not_issued)",
            good="0: the cluster's signer issues certificates at once.",
            bad="above 0 for minutes: kube-controller-manager does not sign.",
            steps=panels.ANY_IS_BAD,
            alerts=("TalosCCMCSRNotIssued",),
        ),
        panels.make_total(
            "Denied",
            'talosccm_csr_approval_count{status="deny"}',
            good="0 in the selected time range.",
            bad="above 0: a node requested a name or address that its machine does not have.",
            steps=panels.ANY_IS_BAD,
            alerts=("TalosCCMCSRDenied",),
        ),
        panels.make_total(
            "Approved",
            'talosccm_csr_approval_count{status="approve"}',
            good="one for each node that joined or renewed in the selected time range.",
            bad="far more: kubelets file requests again and again.",
            steps=panels.NEUTRAL,
        ),
        panels.make_total(
            "Approved without Talos",
            "talosccm_csr_approved_without_talos_total",
            good="0 in the selected time range.",
            bad="above 0: only the Node object supported these requests.",
            steps=panels.ANY_IS_A_WARNING,
        ),
        panels.make_time_series(
            "Decisions",
            panels.build_rate("talosccm_csr_approval_count", "{{status}}", "status"),
            good="approve, when nodes join and when kubelets renew certificates.",
            bad="deny.",
            unit="cps",
            alerts=("TalosCCMCSRDenied",),
        ),
        panels.make_time_series(
            "Waiting requests by missing check",
            panels.Query("max by (reason) (talosccm_csr_waiting)", "{{reason}}"),
            good="no data, or seconds for a Node that does not exist yet.",
            bad="a line that does not fall. docs/certificates.md describes each check.",
            decimals=0,
            silent_because="no request has waited since csr started.",
        ),
        panels.make_time_series(
            "Age of the oldest undecided request",
            panels.Query("max(talosccm_csr_oldest_pending_age_seconds)", "oldest"),
            good="0, with short peaks.",
            bad="a line that climbs.",
            **panels.in_seconds(60, 600),
        ),
        panels.make_time_series(
            "Not issued, and superseded",
            panels.Query("max(talosccm_csr_approved_not_issued)", "approved, not issued"),
            panels.Query("max(talosccm_csr_superseded)", "superseded: the node has a newer request"),
            good="not issued: 0. Kubernetes removes superseded requests within a day.",
            bad="not issued above 0 for minutes; superseded that grows: a kubelet repeats its requests.",
            decimals=0,
            alerts=("TalosCCMCSRNotIssued",),
        ),
        panels.make_time_series(
            "Message age at csr, and handling duration (p99)",
            panels.build_quantile(0.99, "talosccm_hop_latency_seconds", "{{event}} age", "event", _OF_CSR),
            panels.build_quantile(
                0.99, "talosccm_event_handling_duration_seconds", "{{event}} handling", "event", _OF_CSR
            ),
            good="well below a second.",
            bad="seconds: the API server or NATS is slow.",
            **panels.in_seconds(1, 10),
        ),
        panels.make_time_series(
            "Messages of csr by outcome",
            panels.build_rate(f"talosccm_events_handled_total{{{_OF_CSR}}}", "{{outcome}}", "outcome"),
            good="handled.",
            bad="retried that does not end, or put_aside.",
            unit="cps",
            alerts=("TalosCCMDeadLetters",),
        ),
    ),
)
