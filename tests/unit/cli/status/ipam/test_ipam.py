"""`talos-ccm status ipam`: pools in blocks, who has what, what rests until when, what is in conflict."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.cluster.snapshot import ClaimPages, ClusterSnapshot, ConfigFile
from cli.cluster.unavailable import Unavailable
from cli.inside.flow_snapshot import FlowSnapshot, FlowUnavailable, LastMessage
from cli.status.ipam.ipam_status import (
    IpamStatus,
    assess_pod_cidrs,
    build_ipam_status,
    list_pools,
)
from cli.status.ipam.pod_cidrs import ConflictKind
from cli.status.ipam.text import format_ipam_status, format_number
from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.model import Pool as PoolSpec
from libs.common.contract.events import ClusterNetworksObserved
from libs.common.contract.node import Node, NodeSpec, ObjectMeta
from libs.common.kube.objects import ConfigMap
from services.ipam.core.effective_networks import NetworkFlags
from services.ipam.core.pages import PAGE_BYTES, Claim, Page, Pages, decode_pages, encode_page, page_range_of
from services.ipam.core.pools import Pool
from services.ipam.core.release_plan import PresentNode, SweepResult, plan_sweep
from tests.architecture.sources import ROOT
from tests.builders import NOW
from tests.cli_snapshots import make_running_pod, read_screens, render_lines

REST = timedelta(minutes=10)
EVERY_NODE = Ownership()
BOTH = (Pool("default", 4, "10.244.0.0/16", 24), Pool("default", 6, "fd00:10:244::/48", 96))


def node(name: str, *pod_cidrs: str) -> Node:
    return Node(metadata=ObjectMeta(name=name, uid=f"uid-{name}"), spec=NodeSpec(pod_cidrs=pod_cidrs))


def claim(block: str, name: str, *, gone_minutes: int | None = None) -> Claim:
    since = None if gone_minutes is None else NOW - timedelta(minutes=gone_minutes)
    return Claim(block=block, uid=f"uid-{name}", node=name, gone_since=since)


def pages(*claims: Claim) -> tuple[ConfigMap, ...]:
    found: dict[str, dict[str, Claim]] = {}
    for one in claims:
        found.setdefault(page_range_of(one.block), {})[one.block] = one
    return tuple(encode_page(Page(range=where, claims=held)) for where, held in found.items())


def judged(
    there: tuple[ConfigMap, ...],
    *nodes: Node,
    pools: tuple[Pool, ...] = BOTH,
    before: tuple[ConfigMap, ...] | None = None,
    ownership: Ownership = EVERY_NODE,
) -> IpamStatus:
    stored = ClaimPages(before=there if before is None else before, after=there)
    return build_ipam_status(stored, nodes, pools, at=NOW, quarantine=REST, ownership=ownership)


def shown(found: IpamStatus, *, width: int = 0, with_nodes: bool = True) -> str:
    """As a terminal of that width shows it, or, with 0, a pipe."""
    return render_lines(format_ipam_status(found, with_nodes=with_nodes, width=width), width or None)


def kinds(found: IpamStatus) -> list[str]:
    return [conflict.kind for conflict in found.conflicts]


WELL = judged(
    pages(
        claim("10.244.0.0/24", "web-1"),
        claim("fd00:10:244::/96", "web-1"),
        claim("10.244.1.0/24", "web-2"),
        claim("fd00:10:244::1:0:0/96", "web-2"),
        claim("10.244.2.0/24", "web-3"),
        claim("10.244.7.0/24", "gone-1", gone_minutes=4),
        claim("10.244.8.0/24", "gone-2", gone_minutes=11),
    ),
    node("web-1", "10.244.0.0/24", "fd00:10:244::/96"),
    node("web-2", "10.244.1.0/24", "fd00:10:244::1:0:0/96"),
    node("web-3"),
    node("web-4"),
)
ILL = judged(
    (
        *pages(
            claim("10.244.0.0/24", "web-1"),
            claim("10.244.5.0/24", "removed"),
            claim("10.244.6.0/24", "web-7"),
            claim("10.244.9.0/24", "web-1"),
        ),
        ConfigMap(metadata=ObjectMeta(name="talos-ccm-pod-cidrs-10.16.0.0-12")),
    ),
    node("web-1", "10.244.0.0/24"),
    node("web-2", "10.244.0.128/25"),
    node("web-3", "10.244.3.0/24"),
    node("web-4", "10.0.0.0/8"),
    node("web-5", "10.17.0.0/24"),
    node("web-6", "10.244.6.0/24"),
    node("web-7"),
    node("web-8", "no network \x1b[2J"),
)
CASES = {
    "well": WELL,
    "ill": ILL,
    "nothing-known": judged(pages(claim("10.244.0.0/24", "web-1")), node("web-1", "10.244.0.0/24"), pools=()),
    "never-run": judged(pages(), node("web-1", "10.244.0.0/24"), node("web-2")),
}


def test_a_long_name_is_cut_on_a_narrow_terminal_and_whole_in_a_pipe():
    name, network = "a-pool-with-a-name-that-goes-on-and-on", "fd00:1234:5678:9abc::/64"
    found = judged(pages(), pools=(Pool(name, 6, network, 112),))
    assert max(map(len, shown(found, width=80).splitlines())) <= 80
    assert "a-pool" in shown(found, width=80)
    assert name not in shown(found, width=80)
    assert f"{name}  {network}  /112  2^48" in shown(found)
    assert name in shown(found, width=200)


def test_only_conflicts_are_told_by_the_exit_status():
    assert {name: found.exit_status for name, found in CASES.items()} == {
        "well": 0, "ill": 1, "nothing-known": 0, "never-run": 0
    }  # fmt: skip
    assert sorted(set(kinds(ILL))) == [
        "claimWithoutNode", "claimedForAnother", "odd", "overlap", "unclaimed", "unreadablePage"
    ]  # fmt: skip


def test_what_a_node_of_anothers_carries_unclaimed_is_no_conflict_and_it_waits_for_nothing_of_ours():
    nodes = (node("web-1", "10.244.0.0/24"), node("theirs-1", "10.244.9.0/24"), node("theirs-2"))
    there = pages(claim("10.244.0.0/24", "web-1"))
    only_web_1 = "{matchExpressions: [{key: metadata.name, operator: In, values: [web-1]}]}"
    file = parse_cloud_config(f"ownership: {{nodeSelector: [{only_web_1}]}}", "f")
    by_name = file.ownership.default
    assert kinds(judged(there, *nodes)) == ["unclaimed"]
    found = judged(there, *nodes, ownership=by_name)
    assert (kinds(found), found.nodes.waiting, found.exit_status) == ([], 0, 0)
    assert [held.state for held in found.pod_cidrs] == ["foreign", "foreign", "claimed"]
    assert found.pools[0].in_use == 2, "no other Node gets its block"
    assert "none, the Node is not managed" in shown(found)


def test_a_claim_that_is_younger_than_the_list_of_nodes_is_no_conflict():
    young = pages(claim("10.244.0.0/24", "joined-meanwhile"))
    assert kinds(judged(young, before=pages())) == []
    assert kinds(judged(young, before=young)) == ["claimWithoutNode"]


def test_a_block_is_counted_once_however_many_hold_a_part_of_it():
    found = judged(
        pages(claim("10.244.0.0/25", "a"), claim("10.244.0.128/25", "gone", gone_minutes=1)),
        node("a", "10.244.0.0/25"),
        node("b", "10.244.3.0/24"),
    )
    pool = found.pools[0]
    assert (pool.in_use, pool.quarantined, pool.free) == (2, 1, 254)


def test_where_nobody_says_pools_claims_are_told_by_their_pages():
    found = judged(
        pages(claim("10.244.0.0/24", "a"), claim("10.244.1.0/25", "b"), claim("fd00::/80", "a")), pools=()
    )
    told = [(pool.network, pool.mask, pool.in_use, pool.capacity) for pool in found.pools]
    assert told == [
        ("10.240.0.0/12", 24, 1, None),
        ("10.240.0.0/12", 25, 1, None),
        ("fd00::/48", 80, 1, None),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (65536, "65,536"),
        (9_999_999, "9,999,999"),
        (1 << 48, "2^48"),
        ((1 << 48) - 51, "2^48 - 51"),
        (3 << 46, "about 2^47.58"),
        ((1 << 80) - (1 << 30), "about 2^79.99"),
    ],
)
def test_large_numbers_are_powers_of_two(value: int, text: str):
    assert format_number(value) == text


def list_claims(there: tuple[ConfigMap, ...]) -> tuple[Page, ...]:
    return tuple(decode_pages(there, Pages()).by_range.values())


def test_pools_of_the_file_go_before_the_clusters_networks_and_masks_are_those_of_most_claims():
    said = NetworkFlags(cluster_cidrs=("10.244.0.0/16",))
    there = list_claims(
        pages(claim("10.8.0.0/26", "a"), claim("10.8.0.64/26", "b"), claim("10.8.1.0/24", "c"))
    )
    metal = PoolSpec(name="metal", index=0, cidrs=("10.8.0.0/16", "fd00:8::/56"))
    own = PoolSpec(name="own", index=1, cidrs=("10.9.0.0/16",), mask_size_ipv4=28)
    assert list_pools(said, (metal, own), None, there) == (
        Pool("metal", 4, "10.8.0.0/16", 26),
        Pool("metal", 6, "fd00:8::/56", 80),
        Pool("own", 4, "10.9.0.0/16", 28),
    )
    assert list_pools(said, (), None, there) == (Pool("default", 4, "10.244.0.0/16", 24),)
    assert list_pools(msgspec.structs.replace(said, mask_size_ipv4=27), (metal,), None, there)[0].mask == 27
    assert list_pools(NetworkFlags(), (), None, there) == ()
    published = ClusterNetworksObserved(
        stream_id="", service_cidrs=("x",), node_cidr_mask_size_ipv4=25, observed_at=NOW
    )
    assert list_pools(NetworkFlags(), (metal,), published, there)[0].mask == 25, "ipam looks at no claims"
    one = NetworkFlags(mask_size=27)
    assert list_pools(one, (own, msgspec.structs.replace(metal, cidrs=("10.8.0.0/16",))), None, there) == (
        Pool("own", 4, "10.9.0.0/16", 28),
        Pool("metal", 4, "10.8.0.0/16", 27),
    ), "the family of the pools is the cluster's"
    assert list_pools(one, (metal,), None, there)[0].mask == 26, "that of the cluster is unknown"
    two = msgspec.structs.replace(published, pod_cidrs=("10.7.0.0/16", "fd00:7::/56"))
    with pytest.raises(ValueError, match="ipam cannot use its networks: --node-cidr-mask-size cannot be"):
        list_pools(one, (), two, ())
    with pytest.raises(ValueError, match="pool default cannot be used: a block of /24 is larger"):
        list_pools(NetworkFlags(cluster_cidrs=("10.0.0.0/26",)), (), None, ())


BLOCKS = st.sampled_from(
    ["10.244.0.0/24", "10.244.0.0/25", "10.244.1.0/24", "10.244.0.0/16", "10.0.0.0/8", "nonsense"]
)
NAMES = st.sampled_from(["a", "b", "c", "d"])


@given(
    st.dictionaries(st.sampled_from(["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/25"]), NAMES),
    st.dictionaries(NAMES, BLOCKS),
)
def test_what_ipams_next_look_would_take_over_or_call_odd_is_told_and_nothing_else(
    claims: dict[str, str], carried: dict[str, str]
):
    there = pages(*(claim(block, name) for block, name in claims.items()))
    nodes = [node(name, cidr) for name, cidr in carried.items()]
    present = {one.uid: PresentNode(one.name, one.spec.pod_cidrs) for one in nodes}
    by_range = {page.range: page for page in list_claims(there)}
    plans, invalid = plan_sweep(Pages(by_range=by_range), present, rested=(), now=NOW, page_bytes=PAGE_BYTES)
    swept = sum((plan.result for plan in plans), SweepResult(invalid=invalid))
    of_ipam = {(one.node, one.cidr) for one in swept.invalid} | {
        (one.node, one.block) for one in swept.adopted
    }
    found = judged(there, *nodes)
    told = {
        (held.node, held.pod_cidr)
        for held in found.pod_cidrs
        if held.state in ("unclaimed", "claimedForAnother", "odd")
    }
    dropped = {one.block for one in swept.dropped}
    beside = {held.claim.block for held in found.pod_cidrs if held.state == "leftover" and held.claim}
    # A claim that this look would drop may stand in the way of another Node until then.
    blocked = {
        (held.node, held.pod_cidr)
        for held in found.pod_cidrs
        if held.state == "claimedForAnother" and held.claim and held.claim.block in dropped
    }
    assert told - blocked <= of_ipam <= told
    assert {conflict.nodes for conflict in found.conflicts if conflict.kind == "odd"} == {
        (one.node,) for one in invalid
    }
    assert beside == dropped


def test_programs_hear_all_of_it_with_numbers_in_full():
    said = json.loads(msgspec.json.encode(WELL))
    assert said["pools"][1] == {
        "name": "default",
        "network": "fd00:10:244::/48",
        "mask": 96,
        "capacity": 1 << 48,
        "inUse": 2,
        "free": (1 << 48) - 2,
        "quarantined": 0,
    }
    assert said["nodes"] == {"count": 4, "withoutPodCIDRs": 2}
    assert [one["until"] for one in said["quarantined"]] == ["2026-03-01T11:59:00Z", "2026-03-01T12:06:00Z"]
    assert said["podCIDRs"][0]["claim"] == {"block": "10.244.0.0/24", "node": "web-1", "uid": "uid-web-1"}
    assert said["conflicts"] == []
    assert json.loads(msgspec.json.encode(CASES["nothing-known"]))["pools"][0]["free"] is None


def test_the_page_shows_what_is_shown_and_names_every_conflict():
    page = (ROOT / "docs" / "ipam.md").read_text().partition("## Pool usage")[2].partition("\n## ")[0]
    assert read_screens("status-ipam")["well"] in page
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(get_args(ConflictKind))


def test_many_conflicts_of_a_kind_are_counted_and_all_of_them_are_in_the_json():
    found = judged(pages(), *(node(f"n-{n:02}", "10.244.0.0/24") for n in range(30)))
    text = shown(found, with_nodes=False)
    assert "Overlapping pod CIDRs: 29\n" in text
    assert "and 9 more, see -o json" in text
    assert len(found.conflicts) == 29


def test_a_block_that_is_gone_since_the_end_of_days_rests_until_then():
    last = datetime.max.replace(tzinfo=UTC)
    found = judged(pages(msgspec.structs.replace(claim("10.244.0.0/24", "gone"), gone_since=last)))
    assert found.quarantined[0].until == last
    assert "9999-12-31" in shown(found)


def test_pools_are_those_of_the_running_ipam_unless_others_are_given():
    def assess(*flags: str, published: bool = False, config: str = "", **given: str) -> list[str]:
        networks = LastMessage(
            subject="talosccm.v1.flow.enriched.networks",
            published_at=NOW,
            event=ClusterNetworksObserved(stream_id="", pod_cidrs=("10.7.0.0/16",), observed_at=NOW),
        )
        snapshot = ClusterSnapshot(
            at=NOW,
            nodes=(),
            pods=(make_running_pod("services.ipam", *flags),),
            config=ConfigFile(text=config, source="file"),
            flow=FlowSnapshot(at=NOW, networks=networks if published else None),
        )
        values = {name.replace("_", "-"): value for name, value in given.items()}
        found = assess_pod_cidrs(snapshot, ClaimPages(), values)
        return [f"{pool.name} {pool.network}/{pool.mask}" for pool in found.pools]

    config = "ipam: {pools: [{name: own, cidrs: [10.9.0.0/16]}]}"
    assert assess() == []
    assert assess(published=True) == ["default 10.7.0.0/16/24"]
    assert assess("--cluster-cidr=10.8.0.0/16", "--node-cidr-mask-size=25", published=True) == [
        "default 10.8.0.0/16/25"
    ]
    assert assess("--cluster-cidr=10.8.0.0/16", config=config) == ["own 10.9.0.0/16/24"]
    assert assess("--cluster-cidr=10.8.0.0/16", cluster_cidr="10.6.0.0/16") == ["default 10.6.0.0/16/24"]


def test_parts_that_could_not_be_read_are_named_with_the_reason():
    snapshot = ClusterSnapshot(
        at=NOW,
        nodes=(),
        pods=Unavailable(reason="pods is forbidden"),
        config=Unavailable(reason="configmaps is forbidden"),
        flow=FlowUnavailable(reason="no watcher pod"),
    )
    pods, config = (
        "pods of the chart: pods is forbidden",
        "--cloud-config of the chart: configmaps is forbidden",
    )
    found = assess_pod_cidrs(snapshot, ClaimPages(), {})
    assert found.unavailable == ("NATS: no watcher pod", pods, config)
    shown = render_lines(format_ipam_status(found, with_nodes=False, width=0)).splitlines()
    assert [line for line in shown if line.startswith("Unavailable")] == [
        f"Unavailable   {each}" for each in found.unavailable
    ]
    assert json.loads(msgspec.json.encode(found))["unavailable"] == list(found.unavailable)
    given = assess_pod_cidrs(snapshot, ClaimPages(), {}, parse_cloud_config("", "ccm-config.yaml"))
    assert config not in given.unavailable, "the file is given"
    whole = msgspec.structs.replace(
        snapshot, pods=(), config=ConfigFile(text="", source="file"), flow=FlowSnapshot(at=NOW)
    )
    assert assess_pod_cidrs(whole, ClaimPages(), {}).unavailable == ()
