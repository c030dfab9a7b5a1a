"""providerID: the native format where one exists, and never a preliminary value."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from libs.common.contract.instances import build_provider_id, derive_native_provider_id
from libs.common.contract.machine import SETTLING_PERIOD, MachineFacts, PlatformMetadata
from libs.common.contract.node import Node
from libs.common.contract.platforms import PLATFORMS_WITH_PROVIDER_ID, PLATFORMS_WITHOUT_PROVIDER_ID
from services.labeler.core.plan.node_ownership import find_foreign
from services.labeler.core.plan.plan import ClusterConfig, Plan
from services.labeler.core.plan.provider_id import describe_mismatch
from tests.builders import NOW, make_facts, make_node
from tests.node_plans import plan_for, set_ownership_record

NODE = make_node()


def plan_of(facts: MachineFacts, node: Node = NODE) -> Plan:
    return plan_for(node, facts, ClusterConfig())


@pytest.mark.parametrize("platform", sorted(PLATFORMS_WITH_PROVIDER_ID))
def test_a_platform_with_a_native_provider_id_never_gets_a_fallback(platform: str):
    long_after = NOW + timedelta(days=30)
    partial: dict[str, Any] = {"instance_id": "i-1", "region": "r", "zone": "z", "hostname": "h"}
    for metadata in ({}, partial):
        plan = plan_of(make_facts(platform=platform, queried_at=long_after, **metadata))
        assert plan.outcome == "blocked"
        assert plan.blocker is not None
        assert plan.blocker.reason == "WaitingForPlatformMetadata"
        assert platform in plan.blocker.message
        assert not plan.summary


@pytest.mark.parametrize("platform", sorted(PLATFORMS_WITHOUT_PROVIDER_ID))
def test_a_platform_without_one_gets_the_fallback_at_once(platform: str):
    assert plan_of(make_facts(platform=platform)).changes.provider_id == f"talos://{platform}/10.0.0.5"


@pytest.mark.parametrize("platform", ["nocloud", "newer-than-we-are"])
def test_where_nobody_promises_one_the_fallback_waits_until_the_metadata_have_settled(platform: str):
    early = make_facts(platform=platform, queried_at=NOW + SETTLING_PERIOD - timedelta(seconds=1))
    late = msgspec.structs.replace(early, queried_at=NOW + SETTLING_PERIOD)
    told_more = make_facts(platform=platform, hostname="web-1")
    own = make_facts(platform=platform, provider_id="mine://1")
    assert plan_of(early).blocker
    assert not plan_of(late).blocker
    assert not plan_of(told_more).blocker
    assert build_provider_id(told_more.platform, "10.0.0.5") == f"talos://{platform}/10.0.0.5"
    assert build_provider_id(own.platform, "10.0.0.5") == "mine://1"


def test_a_machine_that_does_not_know_its_platform_is_waited_for_however_long_it_takes():
    facts = make_facts(platform="", queried_at=NOW + timedelta(days=1))
    blocker = plan_of(facts).blocker
    assert blocker is not None
    assert blocker.reason == "WaitingForPlatformMetadata"
    assert "Talos does not know its platform yet" in blocker.message


@pytest.mark.parametrize(
    ("reported", "written"),
    [
        (
            "azure:///subscriptions/S-1/resourceGroups/My-RG/providers/Microsoft.Compute/virtualMachines/VM-1",
            "azure:///subscriptions/S-1/resourceGroups/my-rg/providers/Microsoft.Compute/virtualMachines/VM-1",
        ),
        (
            "azure:///subscriptions/RG/resourcegroups/RG/providers/Microsoft.Compute/virtualMachines/RG",
            "azure:///subscriptions/RG/resourcegroups/rg/providers/Microsoft.Compute/virtualMachines/RG",
        ),
        ("azure:///something/Else", "azure:///something/Else"),
    ],
)
def test_the_resource_group_of_azure_alone_is_lower_case(reported: str, written: str):
    assert derive_native_provider_id(PlatformMetadata(platform="azure", provider_id=reported)) == written


SERVER_ID = "0c1e4a52-6c7b-4a2e-9d52-1f0e6a5c7b11"


@pytest.mark.parametrize(
    ("existing", "platform", "reported", "told"),
    [
        ("", "hcloud", "hcloud://1", False),
        ("hcloud://1", "hcloud", "hcloud://1", False),
        ("hcloud://2", "hcloud", "hcloud://1", True),
        ("talos://hcloud/10.0.0.5", "hcloud", "hcloud://1", True),
        ("talos://metal/10.0.0.4", "metal", "", False),
        (f"openstack://RegionOne/{SERVER_ID}", "openstack", f"openstack:///{SERVER_ID}", False),
        (f"openstack:///{SERVER_ID}", "openstack", "openstack:///5f1b8e0d", True),
        (f"openstack://RegionOne/{SERVER_ID}", "openstack", f"openstack://RegionTwo/{SERVER_ID}", True),
        (
            "azure:///subscriptions/s/resourceGroups/rg/x",
            "azure",
            "azure:///Subscriptions/S/resourcegroups/RG/x",
            False,
        ),
    ],
)
def test_a_provider_id_that_contradicts_the_machine_is_told_and_stops_nothing(
    existing: str, platform: str, reported: str, told: bool
):
    node = make_node(provider_id=existing)
    facts = make_facts(platform=platform, provider_id=reported)
    assert bool(describe_mismatch(node, facts.platform)) is told
    plan = plan_of(facts, node)
    assert plan.outcome == "initialized"
    assert plan.changes.provider_id == (None if existing else reported)
    assert [notice.reason for notice in plan.notices] == (["ProviderIDMismatch"] if told else [])


def list_cases(existing: dict[tuple[str, str], tuple[str, ...]]) -> list[tuple[str, str, str]]:
    """Existing providerIDs by platform and reported providerID, one by one."""
    return [(one, *machine) for machine, ids in existing.items() for one in ids]


OURS = list_cases(
    {
        ("hcloud", "hcloud://1"): ("", "hcloud://1", "hcloud://2", "talos://hcloud/10.0.0.5"),
        ("metal", ""): ("talos://metal/10.0.0.5",),
        ("alibabacloud", "cn-hangzhou.i-1"): ("cn-hangzhou.i-1",),
    }
)
FOREIGN = list_cases(
    {
        ("metal", ""): ("kind://docker/k/w", "hrobot://1", "hcloud://1", "cn-hangzhou.i-1"),
        ("hcloud", "hcloud://1"): ("aws:///z/i-1",),
        ("nocloud", ""): ("proxmox://r/1",),
    }
)


METAL = PlatformMetadata(platform="metal")
WRITTEN = set_ownership_record(make_node(provider_id="aws:///z/i-1"), '{"v":1}')


@pytest.mark.parametrize(
    ("node", "platform", "reason"),
    [
        *(
            (make_node(provider_id=existing), PlatformMetadata(platform=platform, provider_id=reported), None)
            for existing, platform, reported in OURS
        ),
        *(
            (
                make_node(provider_id=existing),
                PlatformMetadata(platform=platform, provider_id=reported, hostname="h"),
                existing,
            )
            for existing, platform, reported in FOREIGN
        ),
        # while nothing is known of the machine, a Node that looks foreign is not written
        (make_node(provider_id="aws:///z/i-1"), None, "aws:///z/i-1"),
        (make_node(provider_id="talos://metal/10.0.0.5"), None, None),
        (make_node(), None, None),
        # a silent machine does not change that the Node is ours
        (WRITTEN, None, None),
        (WRITTEN, METAL, "another cloud"),
        (make_node(ip=""), METAL, "--cloud-provider=external"),
        (make_node(deleted_at=NOW), METAL, "the Node is being deleted"),
        # on a platform without a format of its own, the kubelet's providerID stays
        *(
            (make_node(provider_id=given), PlatformMetadata(platform=platform), None)
            for platform in ("metal", "vmware", "container", "opennebula")
            for given in ("metal3://uuid", "sidero://uuid")
        ),
        *(
            (make_node(provider_id=given), METAL, given)
            for given in ("hcloud://7", "proxmox://cluster/7", "vsphere://uuid", "aws:///z/i-1")
        ),
        (
            make_node(provider_id="metal3://uuid"),
            PlatformMetadata(platform="hcloud", provider_id="hcloud://7"),
            "metal3://uuid",
        ),
    ],
)
def test_a_node_is_managed_unless_a_reason_speaks_against_it(
    node: Node, platform: PlatformMetadata | None, reason: str | None
):
    found = find_foreign(node, platform)
    assert (found is None) is (reason is None)
    assert found is None or (reason is not None and reason in found.reason)
