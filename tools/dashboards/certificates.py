"""Certificates: do kubelets get their serving certificates, and which requests were denied."""

from __future__ import annotations

from typing import Final

from tools.dashboards.panels import (
    ANY_IS_A_WARNING,
    ANY_IS_BAD,
    NEUTRAL,
    ORANGE,
    RED,
    Board,
    Query,
    build_quantile,
    make_stat,
    make_time_series,
)

_OF_CSR: Final = 'service="csr"'

CERTIFICATES: Final = Board(
    name="certificates",
    title="Certificates",
    question="Do kubelets get the serving certificates that they request, and which requests were denied?",
    panels=(
        make_stat(
            "Age of the oldest request",
            "max(talosccm_csr_oldest_pending_age_seconds)",
            good="0, or a few seconds.",
            bad="minutes: `talos-ccm explain csr NAME` shows which check does not pass.",
            unit="s",
            steps=((60, ORANGE), (600, RED)),
        ),
        make_stat(
            "Waiting requests",
            "sum(max by (reason) (talosccm_csr_waiting)) or 0 * max(talosccm_csr_superseded)",
            good="0.",
            bad="a number that does not fall.",
            steps=ANY_IS_A_WARNING,
        ),
        make_stat(
            "Approved, not issued",
            "max(talosccm_csr_approved_not_issued)",
            good="0: the cluster's signer issues certificates at once.",
            bad="above 0 for minutes: kube-controller-manager does not sign.",
            steps=ANY_IS_BAD,
            alerts=("TalosCCMCSRNotIssued",),
        ),
        make_stat(
            "Denied",
            'sum(increase(talosccm_csr_approval_count{status="deny"}[$__range]))',
            good="0 in the selected time range.",
            bad="above 0: a node requested a name or address that its machine does not have.",
            steps=ANY_IS_BAD,
            decimals=0,
            alerts=("TalosCCMCSRDenied",),
        ),
        make_stat(
            "Approved",
            'sum(increase(talosccm_csr_approval_count{status="approve"}[$__range]))',
            good="one for each node that joined or renewed in the selected time range.",
            bad="far more: kubelets file requests again and again.",
            steps=NEUTRAL,
            decimals=0,
        ),
        make_stat(
            "Approved without Talos",
            "sum(increase(talosccm_csr_approved_without_talos_total[$__range]))",
            good="0 in the selected time range.",
            bad="above 0: only the Node object supported these requests.",
            steps=ANY_IS_A_WARNING,
            decimals=0,
        ),
        make_time_series(
            "Decisions",
            Query("sum by (status) (rate(talosccm_csr_approval_count[$__rate_interval]))", "{{status}}"),
            good="approve, when nodes join and when kubelets renew certificates.",
            bad="deny.",
            unit="cps",
            alerts=("TalosCCMCSRDenied",),
        ),
        make_time_series(
            "Waiting requests by missing check",
            Query("max by (reason) (talosccm_csr_waiting)", "{{reason}}"),
            good="no data, or seconds for a Node that does not exist yet.",
            bad="a line that does not fall. docs/certificates.md describes each check.",
            decimals=0,
            silent_because="no request has waited since csr started.",
        ),
        make_time_series(
            "Age of the oldest undecided request",
            Query("max(talosccm_csr_oldest_pending_age_seconds)", "oldest"),
            good="0, with short peaks.",
            bad="a line that climbs.",
            unit="s",
            steps=((60, ORANGE), (600, RED)),
        ),
        make_time_series(
            "Not issued, and superseded",
            Query("max(talosccm_csr_approved_not_issued)", "approved, not issued"),
            Query("max(talosccm_csr_superseded)", "superseded: the node has a newer request"),
            good="not issued: 0. Kubernetes removes superseded requests within a day.",
            bad="not issued above 0 for minutes; superseded that grows: a kubelet repeats its requests.",
            decimals=0,
            alerts=("TalosCCMCSRNotIssued",),
        ),
        make_time_series(
            "Message age at csr, and handling duration (p99)",
            Query(
                build_quantile(0.99, "talosccm_hop_latency_seconds", "event", _OF_CSR),
                "{{event}} age",
                exemplars=True,
            ),
            Query(
                build_quantile(0.99, "talosccm_event_handling_duration_seconds", "event", _OF_CSR),
                "{{event}} handling",
                exemplars=True,
            ),
            good="well below a second.",
            bad="seconds: the API server or NATS is slow.",
            unit="s",
            steps=((1, ORANGE), (10, RED)),
        ),
        make_time_series(
            "Messages of csr by outcome",
            Query(
                f"sum by (outcome) (rate(talosccm_events_handled_total{{{_OF_CSR}}}[$__rate_interval]))",
                "{{outcome}}",
            ),
            good="handled.",
            bad="retried that does not end, or put_aside.",
            unit="cps",
            alerts=("TalosCCMDeadLetters",),
        ),
    ),
)
