"""Certificates: do kubelets get what they ask for, and what was refused."""

from __future__ import annotations

from typing import Final

from libs.testbed.dashboards.panels import (
    ANY_IS_A_WARNING,
    ANY_IS_BAD,
    NEUTRAL,
    ORANGE,
    RED,
    Board,
    Query,
    quantile,
    series,
    stat,
)

_OF_CSR: Final = 'service="csr"'

CERTIFICATES: Final = Board(
    name="certificates",
    title="Certificates",
    question="Do kubelets get the serving certificates that they ask for, and what was refused?",
    panels=(
        stat(
            "The oldest request waits",
            "max(talosccm_csr_oldest_pending_age_seconds)",
            good="0, or a few seconds.",
            bad="minutes: `talos-ccm explain csr NAME` says which check it does not pass.",
            unit="s",
            steps=((60, ORANGE), (600, RED)),
        ),
        stat(
            "Requests that wait",
            "sum(max by (reason) (talosccm_csr_waiting)) or 0 * max(talosccm_csr_superseded)",
            good="0: nothing waits for what can still become right.",
            bad="a number that stays.",
            steps=ANY_IS_A_WARNING,
        ),
        stat(
            "Approved, not issued",
            "max(talosccm_csr_approved_not_issued)",
            good="0: the cluster's signer answers at once.",
            bad="above 0 for minutes: kube-controller-manager does not sign.",
            steps=ANY_IS_BAD,
            alerts=("TalosCCMCSRNotIssued",),
        ),
        stat(
            "Denied",
            'sum(increase(talosccm_csr_approval_count{status="deny"}[$__range]))',
            good="0 in the chosen time.",
            bad="above 0: a node asked for a name or address that its machine does not have.",
            steps=ANY_IS_BAD,
            decimals=0,
            alerts=("TalosCCMCSRDenied",),
        ),
        stat(
            "Approved",
            'sum(increase(talosccm_csr_approval_count{status="approve"}[$__range]))',
            good="one for each node that joined or renewed in the chosen time.",
            bad="far more than that: kubelets ask again and again.",
            steps=NEUTRAL,
            decimals=0,
        ),
        stat(
            "Approved without Talos",
            "sum(increase(talosccm_csr_approved_without_talos_total[$__range]))",
            good="0 in the chosen time.",
            bad="above 0: only the Node object bore these out.",
            steps=ANY_IS_A_WARNING,
            decimals=0,
        ),
        series(
            "Decided",
            Query("sum by (status) (rate(talosccm_csr_approval_count[$__rate_interval]))", "{{status}}"),
            good="approve, when nodes join and when certificates are renewed.",
            bad="deny.",
            unit="cps",
            alerts=("TalosCCMCSRDenied",),
        ),
        series(
            "Waiting, by the check that is not passed yet",
            Query("max by (reason) (talosccm_csr_waiting)", "{{reason}}"),
            good="nothing, or seconds for a Node that is not there yet.",
            bad="a line that stays; docs/certificates.md says what each check wants.",
            decimals=0,
            silent_because="no request has had to wait since csr started.",
        ),
        series(
            "Age of the oldest request that is to be decided",
            Query("max(talosccm_csr_oldest_pending_age_seconds)", "oldest"),
            good="0, with short peaks.",
            bad="a line that climbs.",
            unit="s",
            steps=((60, ORANGE), (600, RED)),
        ),
        series(
            "Owed and superseded",
            Query("max(talosccm_csr_approved_not_issued)", "approved, not issued"),
            Query("max(talosccm_csr_superseded)", "superseded: the node has a newer request"),
            good="owed 0; superseded ones are forgotten by Kubernetes within a day.",
            bad="owed that stays; superseded that grows: a kubelet asks without end.",
            decimals=0,
            alerts=("TalosCCMCSRNotIssued",),
        ),
        series(
            "Age of a message when csr begins (99 %), and what handling takes",
            Query(
                quantile(0.99, "talosccm_hop_latency_seconds", "event", _OF_CSR),
                "{{event}} age",
                exemplars=True,
            ),
            Query(
                quantile(0.99, "talosccm_event_handling_duration_seconds", "event", _OF_CSR),
                "{{event}} handling",
                exemplars=True,
            ),
            good="well below a second.",
            bad="seconds: the API server or NATS is slow.",
            unit="s",
            steps=((1, ORANGE), (10, RED)),
        ),
        series(
            "Messages of csr, by outcome",
            Query(
                f"sum by (outcome) (rate(talosccm_events_handled_total{{{_OF_CSR}}}[$__rate_interval]))",
                "{{outcome}}",
            ),
            good="handled.",
            bad="retried without end, or put_aside.",
            unit="cps",
            alerts=("TalosCCMDeadLetters",),
        ),
    ),
)
