"""Pages of claims: what stands in the ConfigMap, and when a claim ends."""

import re
from datetime import datetime, timedelta
from math import inf

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.node import ObjectMeta
from libs.common.kube.objects import ConfigMap
from services.ipam.core.pages import (
    LABELS,
    Claim,
    Page,
    Pages,
    UnreadablePage,
    decode_page,
    encode_page,
    page_name,
    page_range_of,
)
from services.ipam.core.release_plan import (
    AbsenceTimer,
    InvalidPodCidr,
    PresentNode,
    SweepResult,
    plan_sweep,
)
from tests.builders import NOW

HEAD = '{"version":1,"range":"10.240.0.0/12","claims":'
QUARANTINE = timedelta(minutes=10)
NAME = "talos-ccm-pod-cidrs-10.240.0.0-12"


def claim(block: str, uid: str, gone_since: datetime | None = None) -> Claim:
    return Claim(block=block, uid=uid, node=f"node-{uid}", gone_since=gone_since)


def stored(text: str, name: str = NAME, created: datetime | None = NOW) -> ConfigMap:
    metadata = ObjectMeta(name=name, resource_version="9", creation_timestamp=created, labels=LABELS)
    return ConfigMap(metadata=metadata, data={"claims.json": text})


def page(*claims: Claim, page_range: str = "10.240.0.0/12") -> Page:
    return Page(range=page_range, resource_version="7", claims={one.block: one for one in claims})


@pytest.mark.parametrize(
    ("block", "page_range", "name"),
    [
        ("10.244.1.0/24", "10.240.0.0/12", NAME),
        ("10.240.0.0/12", "10.240.0.0/12", NAME),
        ("192.168.7.0/28", "192.160.0.0/12", "talos-ccm-pod-cidrs-192.160.0.0-12"),
        ("fd00:10:244:7::/80", "fd00:10:244::/48", "talos-ccm-pod-cidrs-fd00-0010-0244-48"),
        ("2001:db8::/64", "2001:db8::/48", "talos-ccm-pod-cidrs-2001-0db8-0000-48"),
        ("::/48", "::/48", "talos-ccm-pod-cidrs-0000-0000-0000-48"),
    ],
)
def test_a_block_has_one_page_whose_name_never_changes(block, page_range, name):
    assert page_range_of(block) == page_range
    assert page_name(page_range) == name


@pytest.mark.parametrize("block", ["10.0.0.0/11", "fd00::/47", "0.0.0.0/0"])
def test_a_block_wider_than_a_page_has_none(block):
    with pytest.raises(ValueError, match="wider than a page"):
        page_range_of(block)


@given(
    st.dictionaries(
        st.integers(0, 4095).map(lambda third: f"10.{240 + third // 256}.{third % 256}.0/24"),
        st.tuples(
            st.uuids().map(str),
            st.from_regex(r"[a-z0-9.-]{1,253}", fullmatch=True),
            st.none() | st.datetimes(timezones=st.just(NOW.tzinfo)),
        ),
        max_size=20,
    )
)
def test_a_page_is_read_as_it_was_written_and_no_larger_than_it_said(claims):
    before = page(*(Claim(block=b, uid=u, node=n, gone_since=g) for b, (u, n, g) in claims.items()))
    written = encode_page(before)
    assert decode_page(written) == before
    assert sum(map(len, written.data["claims.json"].encode().splitlines())) <= before.size


def test_this_is_what_stands_in_a_page():
    """Clusters hold such pages: whatever comes later must read them."""
    text = (
        '{"version":1,"range":"10.240.0.0/12","claims":{"10.244.0.0/24":{"uid":"u1","node":"web-1"},'
        '"10.244.1.0/24":{"uid":"u2","node":"web-2","goneSince":"2026-01-01T00:00:00Z"}}}'
    )
    read = decode_page(stored(text))
    assert isinstance(read, Page)
    assert read.claims["10.244.0.0/24"] == Claim(block="10.244.0.0/24", uid="u1", node="web-1")
    assert encode_page(read) == stored(text, created=None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "truncated"),
        ("{", "truncated"),
        ("[" * 5000, "recursion|array"),
        ('{"version":2,"range":"10.240.0.0/12","claims":{}}', "version is 2"),
        ('{"version":1,"range":"10.0.0.0/12","claims":{}}', "range is 10.0.0.0/12"),
        ('{"version":1,"range":"here","claims":{}}', "not a network"),
        ('{"version":1,"range":"10.240.0.0/12","claims":{"x":{"uid":"u"}}}', "not a network"),
        ('{"version":1,"range":"10.240.0.0/12","claims":{"10.0.0.0/24":{"uid":"u"}}}', "not a block of"),
        ('{"version":1,"range":"10.240.0.0/12","claims":{"10.240.0.1/24":{"uid":"u"}}}', "not a block of"),
        ('{"version":1,"range":"10.240.0.0/12","claims":{"10.240.0.0/24":{"uid":""}}}', "no uid"),
        (
            HEAD + '{"10.240.0.0/24":{"uid":"u"},"10.240.0.0/25":{"uid":"v"}}}',
            "overlap",
        ),
        (
            HEAD + '{"10.240.0.0/24":{"uid":"u","goneSince":"2026-01-01T00:00:00"}}}',
            "has no time zone",
        ),
    ],
)
def test_what_cannot_be_a_page_is_unreadable_and_says_why(text, reason):
    read = decode_page(stored(text))
    assert isinstance(read, UnreadablePage)
    assert read.name == NAME
    assert re.search(reason, read.reason, re.IGNORECASE), read.reason


@pytest.mark.parametrize(
    ("name", "page_range"),
    [
        ("talos-ccm-pod-cidrs-fd00-0000-0000-48", "fd00::5/48"),
        ("talos-ccm-pod-cidrs-fd00-0000-0000-48", "FD00::/48"),
        ("talos-ccm-pod-cidrs-10.240.0.0-13", "10.240.0.0/13"),
    ],
)
def test_a_range_that_somebody_wrote_otherwise_than_we_do_is_no_page_beside_ours(name, page_range):
    text = f'{{"version":1,"range":"{page_range}","claims":{{}}}}'
    read = decode_page(stored(text, name))
    assert isinstance(read, UnreadablePage)
    assert f"its range is {page_range}" in read.reason


# ---- the end of claims


class Released(msgspec.Struct):
    """What a sweep plans for one page, and for podCIDRs that no page can contain."""

    page: Page
    result: SweepResult
    invalid: tuple[InvalidPodCidr, ...]
    ranges: set[str]  # of all pages that it plans


def released(
    before: Page,
    present: dict[str, PresentNode],
    at: datetime = NOW,
    page_bytes: int = 10**6,
    rested: tuple[str, ...] = (),
) -> Released:
    keys = {(block, claim.uid) for block, claim in before.claims.items() if block in rested}
    pages = Pages(by_range={before.range: before})
    plans, invalid = plan_sweep(pages, present, rested=keys, now=at, page_bytes=page_bytes)
    [plan] = [plan for plan in plans if plan.page.range == before.range]
    assert plan.changes_page == (plan.page != before)
    return Released(plan.page, plan.result, invalid, {plan.page.range for plan in plans})


def test_a_claim_whose_node_is_gone_ends_when_its_quarantine_is_over():
    first = released(page(claim("10.244.0.0/24", "u")), {})
    assert first.page.claims["10.244.0.0/24"].gone_since == NOW
    early = released(first.page, {}, NOW + timedelta(days=1))
    assert early.page == first.page
    late = released(first.page, {}, rested=("10.244.0.0/24",))
    assert late.page.claims == {}
    assert [one.uid for one in late.result.freed] == ["u"]


def test_the_quarantine_counts_from_the_end_of_one_list_to_the_begin_of_another():
    timer, key = AbsenceTimer(600.0), ("10.244.0.0/24", "u")
    assert timer.observe({key}, list_began=0.0, list_ended=60.0) == set()
    assert timer.seconds_left(100.0) == 560.0
    assert timer.observe({key}, list_began=659.0, list_ended=700.0) == set()
    assert timer.observe({key}, list_began=660.0, list_ended=700.0) == {key}
    assert timer.seconds_left(700.0) == inf


def test_the_quarantine_starts_again_for_a_uid_that_was_listed_meanwhile_and_for_another_claim():
    timer, key, other = AbsenceTimer(600.0), ("10.244.0.0/24", "u"), ("10.244.1.0/24", "u")
    timer.observe({key}, list_began=0.0, list_ended=0.0)
    timer.observe(set(), list_began=1.0, list_ended=1.0)
    assert timer.observe({key, other}, list_began=700.0, list_ended=700.0) == set()
    assert timer.observe({key, other}, list_began=1300.0, list_ended=1300.0) == {key, other}


def test_a_uid_that_is_listed_again_is_not_gone():
    marked = page(claim("10.244.0.0/24", "u", gone_since=NOW - QUARANTINE))
    after = released(marked, {"u": PresentNode("node-u", ())})
    assert after.page.claims["10.244.0.0/24"].gone_since is None


def test_the_claims_of_a_node_without_pod_cidrs_stay_all():
    before = page(claim("10.244.0.0/24", "u"), claim("10.244.2.0/23", "u"))
    assert released(before, {"u": PresentNode("node-u", ())}).page == before


def test_once_a_node_carries_something_its_other_claims_are_dropped():
    before = page(claim("10.244.0.0/24", "u"), claim("10.244.2.0/23", "u"))
    after = released(before, {"u": PresentNode("node-u", ("10.244.2.0/23", "fd00::/64"))})
    assert set(after.page.claims) == {"10.244.2.0/23"}
    assert [one.block for one in after.result.dropped] == ["10.244.0.0/24"]


def test_the_claim_of_a_node_that_carries_only_what_nobody_can_read_ends():
    after = released(page(claim("10.244.0.0/24", "u")), {"u": PresentNode("node-u", ("nonsense",))})
    assert after.page.claims == {}
    assert [one.block for one in after.result.dropped] == ["10.244.0.0/24"]


def test_a_claim_that_its_node_carries_in_another_writing_stays():
    before = page(claim("10.244.0.0/24", "u"))
    assert released(before, {"u": PresentNode("node-u", ("010.244.000.007/024",))}).page == before


def test_what_a_node_carries_without_a_claim_is_adopted():
    after = released(page(), {"u": PresentNode("web-1", ("10.244.7.9/24", "fd00::/64", "172.16.0.0/24"))})
    assert after.result.adopted == (Claim(block="10.244.7.0/24", uid="u", node="web-1"),)
    assert after.page.claims == {"10.244.7.0/24": after.result.adopted[0]}


def test_the_claim_of_a_node_that_has_become_another_s_ends_when_it_carries_something_else():
    before = page(claim("10.244.0.0/24", "u"))
    theirs = PresentNode("node-u", ("10.244.7.0/24", "nonsense"), is_foreign=True)
    after = released(before, {"u": theirs})
    assert [one.block for one in after.result.dropped] == ["10.244.0.0/24"]
    assert after.page.claims == {}
    assert (after.result.adopted, after.result.invalid, after.invalid) == ((), (), ())
    assert after.ranges == {before.range}
    assert released(before, {"u": PresentNode("node-u", ("10.244.0.0/24",), is_foreign=True)}).page == before


@pytest.mark.parametrize(
    ("after", "is_late"),
    [
        (-timedelta(days=300), False),  # it was there before there was an ipam
        (-timedelta(seconds=1), False),
        (timedelta(0), False),
        (timedelta(seconds=5), False),  # by the clock of another API server
        (timedelta(minutes=2), True),  # with a page to claim in, and no claim
    ],
)
def test_what_a_node_carries_that_is_younger_than_the_page_is_not_from_before_us(after, is_late):
    there = msgspec.structs.replace(page(), created=NOW)
    found = released(there, {"u": PresentNode("web-1", ("10.244.7.0/24",), NOW + after)})
    assert len(found.result.adopted) == 1
    assert found.result.unexpected == (found.result.adopted if is_late else ())


def test_in_a_page_that_is_not_there_yet_everything_is_from_before_us():
    found = released(page(), {"u": PresentNode("web-1", ("10.244.7.0/24",), NOW)})
    assert (len(found.result.adopted), found.result.unexpected) == (1, ())


def test_what_overlaps_a_claim_of_another_is_reported_and_changes_nothing():
    before = page(claim("10.244.0.0/24", "u"))
    carried = ("10.244.0.0/24",)
    present = {"u": PresentNode("node-u", carried), "v": PresentNode("node-v", ("10.244.0.0/23",))}
    after = released(before, present)
    assert after.page == before
    assert after.result.invalid == (
        InvalidPodCidr(
            node="node-v",
            uid="v",
            cidr="10.244.0.0/23",
            reason="10.244.0.0/24 is another's, or was claimed for it",
        ),
    )


def test_a_full_page_adopts_nothing_and_still_marks_and_frees():
    before = page(claim("10.244.0.0/24", "u"), claim("10.244.1.0/24", "v", gone_since=NOW - QUARANTINE))
    after = released(
        before,
        {"w": PresentNode("w", ("10.244.9.0/24",))},
        page_bytes=before.size - 100,
        rested=("10.244.1.0/24",),
    )
    assert after.page.claims == {"10.244.0.0/24": claim("10.244.0.0/24", "u", gone_since=NOW)}


def test_pod_cidrs_that_no_page_can_hold_are_odd_in_themselves():
    present = {"u": PresentNode("a", ("nonsense", "10.0.0.0/8", "10.244.0.0/24", "fd00::/40"))}
    after = released(page(), present)
    assert [(odd.cidr, odd.reason) for odd in after.invalid] == [
        ("nonsense", "it is no network"),
        ("10.0.0.0/8", "it is wider than /12"),
        ("fd00::/40", "it is wider than /48"),
    ]
    assert after.ranges == {"10.240.0.0/12"}


def test_a_page_is_not_changed_in_place():
    before = page(claim("10.244.0.0/24", "u"))
    copy = msgspec.structs.replace(before, claims=dict(before.claims))
    released(before, {})
    assert before == copy
