"""Overview: does it work, and if not, which board says why."""

from __future__ import annotations

from typing import Final

from libs.testbed.dashboards.joining import UNTIL_USABLE
from libs.testbed.dashboards.panels import (
    ANY_IS_A_WARNING,
    ANY_IS_BAD,
    GREEN,
    ORANGE,
    RED,
    Board,
    Meaning,
    Panel,
    Query,
    risen,
    series,
    stat,
)

OVERVIEW: Final = Board(
    name="overview",
    title="Overview",
    question="Do joining nodes become usable, and is everything there that makes them so?",
    panels=(
        stat(
            "Alerts that fire",
            'count(ALERTS{alertname=~"TalosCCM.+", alertstate="firing"}) or vector(0)',
            good="0, if Prometheus has loaded the rules: without them it is always 0.",
            bad="anything else; the table below says which, with its runbook.",
            steps=ANY_IS_BAD,
        ),
        stat(
            "Nodes not usable yet",
            'max(talosccm_nodes{state="uninitialized"})',
            good="0, or a number that falls while nodes join.",
            bad="a number that stays: these nodes bear the uninitialized taint, and no pod runs on them.",
            steps=((1, ORANGE), (10, RED)),
            alerts=("TalosCCMNodeUninitializedTooLong",),
        ),
        stat(
            "The oldest of them waits",
            "max(talosccm_oldest_uninitialized_seconds)",
            good="0, or less than a minute.",
            bad="more than five minutes: `talos-ccm explain node NAME` says what it waits for.",
            unit="s",
            steps=((60, ORANGE), (300, RED)),
            alerts=("TalosCCMNodeUninitializedTooLong",),
        ),
        stat(
            "Processes not answering",
            "count(up == 0) or 0 * count(up)",
            good="0.",
            bad="one or more: Prometheus gets no metrics of them.",
            steps=ANY_IS_BAD,
            alerts=("TalosCCMDown",),
        ),
        stat(
            "Services without NATS",
            "count(talosccm_nats_connected == 0) or 0 * count(talosccm_nats_connected)",
            good="0.",
            bad="one or more: they neither hear nor say anything until it is back.",
            steps=ANY_IS_BAD,
            alerts=("TalosCCMBusDisconnected",),
            silent_because="all services are one process without NATS (--bus=memory).",
        ),
        stat(
            "Leader",
            "max(talosccm_leader)",
            good="one watcher leads.",
            bad="nobody: the services are told of no node and of no request for a certificate.",
            steps=((float("-inf"), RED), (1, GREEN)),
            meanings={0: Meaning("nobody", RED), 1: Meaning("leads", GREEN)},
            alerts=("TalosCCMNoLeader", "TalosCCMLeaderSilent"),
        ),
        Panel(
            kind="table",
            title="What fires or is about to",
            good="an empty table.",
            bad="rows; a name leads to its runbook. `pending` has not lasted long enough to fire.",
            queries=(
                Query('max by (alertname, alertstate, severity, service) (ALERTS{alertname=~"TalosCCM.+"})'),
            ),
            hidden_columns=("Time", "Value"),
            links={"alertname": ("Runbook", "${runbooks:raw}/${__value.raw}.md")},
            silent_because="no alert fires or is pending, or Prometheus has not loaded the rules.",
        ),
        UNTIL_USABLE,
        series(
            "Nodes",
            Query("max by (state) (talosccm_nodes)", "{{state}}"),
            Query("max(talosccm_blocked_nodes)", "blocked, says why in a condition"),
            good="all usable; uninitialized comes and goes with joining nodes.",
            bad="blocked above 0, or uninitialized that stays.",
            decimals=0,
            alerts=("TalosCCMNodeUninitializedTooLong",),
        ),
        series(
            "Since the API server was last heard",
            Query(
                "time() - max by (resource) (talosccm_watch_last_heard_timestamp_seconds > 0)", "{{resource}}"
            ),
            Query("time() - max(talosccm_resync_last_timestamp_seconds > 0)", "last re-sync"),
            good="watches below a minute; the re-sync below its period, which is five minutes by default.",
            bad="a line that climbs: the watcher is deaf, or does not lead.",
            unit="s",
            steps=((600, RED),),
            alerts=("TalosCCMWatchStale", "TalosCCMNoLeader"),
        ),
        stat(
            "Config file not obeyed by",
            "count(talosccm_rules_reload_success == 0) or 0 * count(talosccm_rules_reload_success)",
            good="0 services.",
            bad="one or more: the --cloud-config file has mistakes for them, and they obey an older one.",
            steps=ANY_IS_A_WARNING,
            alerts=("TalosCCMRulesReloadFailed",),
            silent_because="no service has a --cloud-config file.",
            width=6,
            height=8,
        ),
        series(
            "Nodes of machines that are gone",
            Query("sum(increase(talosccm_lifecycle_capped_total[$__rate_interval]))", "kept: cap or record"),
            Query(
                risen("talosccm_lifecycle_deletions_total", "outcome"),
                "{{outcome}}",
            ),
            Query("max(talosccm_lifecycle_proving_nodes)", "being proven"),
            good="flat: nodes are deleted when their machine was replaced, and not many at once.",
            bad="kept or failed above 0: somebody has to look.",
            alerts=("TalosCCMLifecycleCapped", "TalosCCMNoLifecycleLeader"),
            width=18,
        ),
    ),
)
