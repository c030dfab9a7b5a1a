"""Overview: does the controller work, and if not, which dashboard shows why."""

from __future__ import annotations

from typing import Final

from tools.dashboards import panels
from tools.dashboards.joining import UNTIL_USABLE

OVERVIEW: Final = panels.Board(
    name="overview",
    title="Overview",
    question="Do joining nodes become usable, and does everything run that they need?",
    panels=(
        panels.make_stat(
            "Firing alerts",
            'count(ALERTS{alertname=~"TalosCCM.+", alertstate="firing"}) or vector(0)',
            good="0, provided that Prometheus has loaded the rules. Without them it is always 0.",
            bad="any other value. The table below lists the alerts with their runbooks.",
            steps=panels.ANY_IS_BAD,
        ),
        panels.make_stat(
            "Nodes not usable yet",
            'max(talosccm_nodes{state="uninitialized"})',
            good="0, or a number that falls while nodes join.",
            bad="a number that does not fall: these nodes keep the uninitialized taint and get no pods.",
            steps=((1, panels.ORANGE), (10, panels.RED)),
            alerts=("TalosCCMNodeUninitializedTooLong",),
        ),
        panels.make_stat(
            "Age of the oldest",
            "max(talosccm_oldest_uninitialized_seconds)",
            good="0, or less than a minute.",
            bad="more than five minutes: `talos-ccm explain node NAME` shows the cause.",
            **panels.in_seconds(60, 300),
            alerts=("TalosCCMNodeUninitializedTooLong",),
        ),
        panels.make_stat(
            "Processes not answering",
            "count(up == 0) or 0 * count(up)",
            good="0.",
            bad="one or more: Prometheus cannot scrape them.",
            steps=panels.ANY_IS_BAD,
            alerts=("TalosCCMDown",),
        ),
        panels.make_stat(
            "Services without NATS",
            "count(talosccm_nats_connected == 0) or 0 * count(talosccm_nats_connected)",
            good="0.",
            bad="one or more: they pause until they have a connection again.",
            steps=panels.ANY_IS_BAD,
            alerts=("TalosCCMBusDisconnected",),
            silent_because="all services are one process without NATS (--bus=memory).",
        ),
        panels.make_stat(
            "Leader",
            "max(talosccm_leader)",
            good="one watcher leads.",
            bad="no leader: no process publishes nodes and certificate requests to the services.",
            steps=((float("-inf"), panels.RED), (1, panels.GREEN)),
            meanings={
                0: panels.ValueMapping("none", panels.RED),
                1: panels.ValueMapping("leads", panels.GREEN),
            },
            alerts=("TalosCCMNoLeader", "TalosCCMLeaderSilent"),
        ),
        panels.Panel(
            kind="table",
            title="Firing and pending alerts",
            good="an empty table.",
            bad="rows; each name links to its runbook. A `pending` alert has not lasted long enough to fire.",
            queries=(
                panels.Query(
                    'max by (alertname, alertstate, severity, service) (ALERTS{alertname=~"TalosCCM.+"})'
                ),
            ),
            hidden_columns=("Time", "Value"),
            links={"alertname": ("Runbook", "${runbooks:raw}/${__value.raw}.md")},
            silent_because="no alert fires or is pending, or Prometheus has not loaded the rules.",
        ),
        UNTIL_USABLE,
        panels.make_time_series(
            "Nodes",
            panels.Query("max by (state) (talosccm_nodes)", "{{state}}"),
            panels.Query("max(talosccm_blocked_nodes)", "blocked, with a condition"),
            good="all usable; uninitialized rises only while nodes join.",
            bad="blocked above 0, or uninitialized that does not fall.",
            decimals=0,
            alerts=("TalosCCMNodeUninitializedTooLong",),
        ),
        panels.make_time_series(
            "Time since the last data from the API server",
            panels.Query(
                "time() - max by (resource) (talosccm_watch_last_heard_timestamp_seconds > 0)", "{{resource}}"
            ),
            panels.Query("time() - max(talosccm_resync_last_timestamp_seconds > 0)", "last resync"),
            good="watches below a minute; the resync below its period, five minutes by default.",
            bad="a line that climbs: the watcher receives nothing, or does not lead.",
            unit="s",
            steps=((600, panels.RED),),
            alerts=("TalosCCMWatchStale", "TalosCCMNoLeader"),
        ),
        panels.make_stat(
            "Services that reject the config file",
            "count(talosccm_rules_reload_success == 0) or 0 * count(talosccm_rules_reload_success)",
            good="0 services.",
            bad="one or more: the --cloud-config file is invalid for them, and they use an older version.",
            steps=panels.ANY_IS_A_WARNING,
            alerts=("TalosCCMRulesReloadFailed",),
            silent_because="no service has a --cloud-config file.",
            width=6,
            height=8,
        ),
        panels.make_time_series(
            "Nodes of machines that are gone",
            panels.Query(
                "sum(increase(talosccm_lifecycle_capped_total[$__rate_interval]))", "kept: limit or record"
            ),
            panels.build_increase("talosccm_lifecycle_deletions_total", "{{outcome}}", "outcome"),
            panels.Query("max(talosccm_lifecycle_proving_nodes)", "evidence incomplete"),
            good="flat, or single deletions: lifecycle deletes a node when its machine was replaced.",
            bad="kept or failed above 0: an operator must check the nodes.",
            alerts=("TalosCCMLifecycleCapped", "TalosCCMNoLifecycleLeader"),
            width=18,
        ),
    ),
)
