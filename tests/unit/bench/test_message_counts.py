"""Counters of our services per joining node, from metrics pages, counting processes and logs."""

import importlib
import inspect
import struct
from pathlib import Path

import pytest

from tests.bench.instrumentation import FOLLOWERS
from tests.bench.metrics import MessageCounts, compute_message_figures, read_message_counts

ROOT = Path(__file__).parents[3]
PAGE = """\
# TYPE talosccm_published counter
talosccm_published_total{event="flow.observed.node",outcome="published"} 30.0
talosccm_published_total{event="flow.observed.node",outcome="superseded"} 7.0
talosccm_published_total{event="decided.labeler.node",outcome="published"} 10.0
talosccm_published_total{event="flow.leading",outcome="published"} 99.0
talosccm_transformer_duration_seconds_count{type="transformer"} 12.0
talosccm_transformer_duration_seconds_bucket{le="+Inf",type="transformer"} 12.0
"""


def counts(observed: float, *, applied: int, checked: int, plans: float, log_lines: int) -> MessageCounts:
    return MessageCounts(
        published={"flow.observed.node": observed},
        applied=applied,
        checked=checked,
        plans=plans,
        log_lines=log_lines,
    )


def test_counts_of_all_processes_are_added_and_heartbeats_of_the_leader_are_left_out(tmp_path: Path):
    applied, log = tmp_path / "1", tmp_path / "watcher.log"
    applied.write_bytes(struct.pack("QQ", 300, 40))
    log.write_text("one\ntwo\nnot complete")
    found = read_message_counts([PAGE, PAGE], [applied, tmp_path / "not started"], [log])
    assert found.published == {"flow.observed.node": 60, "decided.labeler.node": 20}
    assert (found.applied, found.checked, found.plans, found.log_lines) == (300, 40, 24, 2)


def test_only_what_was_added_counts_and_streams_are_no_calls():
    before = counts(5, applied=10, checked=2, plans=1, log_lines=3)
    after = counts(25, applied=70, checked=22, plans=5, log_lines=23)
    talos = {"Get PlatformMetadatas": 20, "List AddressStatuses": 10, "Version": 10, "Watch Nodenames": 20}
    assert compute_message_figures(before, after, talos, 10) == {
        "per node: messages published": 2.0,
        "per node: ... flow.observed.node": 2.0,
        "per node: messages applied by caches": 6.0,
        "per node: messages applied by the watcher": 2.0,
        "per node: plans of the labeler": pytest.approx(0.4),
        "per node: Talos calls": 4.0,
        "per node: Talos streams": 2.0,
        "per node: log lines": 2.0,
    }


def test_the_counted_followers_exist_and_apply_one_message_at_a_time():
    for module, name in FOLLOWERS.items():
        follower = getattr(importlib.import_module(module), name)
        assert list(inspect.signature(follower.apply).parameters) == ["self", "message"]
