"""How often a reflector may ask, whatever the server does to it; and sockets that notice a dead peer."""

import socket
from itertools import count, pairwise

from hypothesis import given
from hypothesis import strategies as st

from libs.common.kube.keepalive_socket import keepalive_socket
from libs.common.kube.reflector import pause_seconds

jitters = st.floats(0.0, 1.0, exclude_max=True)


def test_a_watch_that_ended_as_it_should_is_followed_by_the_next_one_at_once():
    assert pause_seconds(0, 0.99) == 0.0


@given(jitters)
def test_a_server_that_fails_every_list_and_watch_hears_less_than_one_request_a_second(jitter: float):
    now, requests = 0.0, 0
    for failures in count(1):
        requests += 2
        now += pause_seconds(failures, jitter)
        if now >= 60.0:
            break
    assert requests < 60


@given(jitters)
def test_pauses_grow_to_a_cap_that_keeps_recovery_quick(jitter: float):
    pauses = [pause_seconds(failures, jitter) for failures in range(1, 100)]
    assert all(later >= earlier for earlier, later in pairwise(pauses))
    assert 0.5 <= pauses[0] <= 1.0
    assert max(pauses) <= 15.0


def test_many_replicas_do_not_come_back_together():
    assert pause_seconds(5, 0.0) < pause_seconds(5, 0.5) < pause_seconds(5, 0.99)


def test_the_kernel_ends_a_connection_whose_peer_acknowledges_nothing_within_half_a_minute():
    made = keepalive_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1)))
    with made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        between = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        probes = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert idle + between * probes <= 30
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000
