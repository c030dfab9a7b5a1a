"""The settings of the watcher."""

import pytest

from services.watcher.settings import WatcherSettings


def test_the_defaults_are_those_of_the_reference():
    settings = WatcherSettings()
    assert settings.problems() == ()
    assert (settings.lease_duration_seconds, settings.renew_deadline_seconds) == (15.0, 10.0)
    assert (settings.lease_namespace, settings.lease_name) == (
        "kube-system",
        "cloud-controller-manager-talos",
    )
    assert (settings.retry_period_seconds, settings.resync_seconds) == (2.0, 300.0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lease_duration_seconds": 10.0}, "two could lead at once"),
        ({"retry_period_seconds": 9.0}, "no second attempt"),
        ({"lease_duration_seconds": 15.5}, "whole seconds"),
    ],
)
def test_contradictions_are_reported_by_the_names_of_their_flags(fields, words):
    (problem,) = WatcherSettings(**fields).problems()
    assert words in problem
    assert "--leader-elect" in problem


def test_observing_only_takes_no_lease():
    assert WatcherSettings().uses_lease
    assert not WatcherSettings(observe_only=True).uses_lease
    assert not WatcherSettings(leader_elect=False).uses_lease


@pytest.mark.parametrize(("configured", "expected"), [(300.0, 300.0), (1800.0, 1800.0), (7200.0, 1800.0)])
def test_every_object_is_published_again_before_the_stream_drops_it(configured: float, expected: float):
    assert WatcherSettings(resync_seconds=configured).republish_seconds == expected
