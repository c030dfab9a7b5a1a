"""Which requests of browsers are refused."""

import pytest

from services.console.login.request_guard import RequestHead, explain_refusal


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1", "LOCALHOST:80", "127.0.0.1:10467", "[::1]:10467", "[::1]"]
)
def test_a_loopback_host_is_answered(host: str):
    assert not explain_refusal(RequestHead(host=host, is_data=True))


@pytest.mark.parametrize(
    "host", ["", "10.0.0.1", "localhost.", "evil@localhost", "[::2]:1", "localhost:", "::1"]
)
def test_any_other_host_is_refused(host: str):
    assert explain_refusal(RequestHead(host=host, fetch_site="same-origin"))


HOSTS = ("console.example", "10.0.0.9", "[fd00::1]")


@pytest.mark.parametrize(
    "host", ["console.example", "Console.Example:443", "10.0.0.9:30443", "[fd00::1]:443"]
)
def test_a_server_that_others_reach_answers_to_its_own_names(host: str):
    assert not explain_refusal(RequestHead(host=host), HOSTS)
    assert not explain_refusal(RequestHead(host="localhost:10467"), HOSTS), "kubectl port-forward"


@pytest.mark.parametrize(
    "host", ["evil.example", "console.example.evil.example", "fd00::1", "console.example:x", "10.0.0.1"]
)
def test_it_refuses_other_names_and_says_its_own(host: str):
    assert "https://console.example" in explain_refusal(RequestHead(host=host), HOSTS)


OWN = "https://console.example:8443"


@pytest.mark.parametrize(
    ("origin", "fetch_site", "is_own"),
    [
        (OWN, "same-origin", True),
        (OWN, "", True),
        ("", "same-origin", True),
        ("", "", False),
        ("null", "same-origin", False),
        (OWN, "same-site", False),
        (OWN, "cross-site", False),
        (OWN, "none", False),
        ("https://evil.example", "", False),
        ("https://evil.example", "same-origin", False),
        ("https://console.example", "", False),  # another port of the host
        ("http://console.example:8443", "", False),
    ],
)
def test_only_its_own_pages_may_write(origin: str, fetch_site: str, is_own: bool):
    head = RequestHead(host="console.example:8443", origin=origin, fetch_site=fetch_site, is_write=True)
    assert (not explain_refusal(head, HOSTS)) is is_own
