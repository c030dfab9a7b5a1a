"""The watcher Lease: the one that the caller names or the workload configures, never a guess."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from cli.cluster.installation import get_lease_name
from cli.cluster.kube_objects import Container
from cli.cluster.lease_state import LeaseState, read_lease_state
from cli.cluster.query import ClusterQuery
from cli.cluster.read_cluster import fetch_watcher_lease
from cli.cluster.unavailable import Unavailable
from libs.common.contract.services import (
    LIFECYCLE_LEASE,
    LIFECYCLE_LEASE_NAME,
    WATCHER_LEASE,
    WATCHER_LEASE_NAME,
)
from libs.common.kube.errors import Forbidden, KubeError, NotFound
from libs.common.kube.lease import Lease, LeaseSpec
from libs.common.kube.objects import Page, Resource
from tests.builders import NOW

DEFAULT, MINE, FAR = ("kube-system", WATCHER_LEASE_NAME), ("talos", "mine"), ("talos", WATCHER_LEASE_NAME)


def a_deployment(release: str, *arguments: str) -> dict[str, Any]:
    container = {"name": "c", "command": ["python", "-m", "services.watcher"], "args": list(arguments)}
    return {
        "metadata": {
            "name": f"{release}-watcher",
            "namespace": "ccm",
            "labels": {"app.kubernetes.io/instance": release},
        },
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


RENAMED = a_deployment("a", "--leader-elect-resource-name=mine", "--leader-elect-resource-namespace", "talos")


class FakeKube:
    """An API server with these Leases and Deployments; `refusal` answers every list."""

    def __init__(
        self,
        *deployments: dict[str, Any],
        held: tuple[tuple[str, str], ...] = (),
        refusal: KubeError | None = None,
    ) -> None:
        self.lists: list[str] = []
        self._deployments = list(deployments)
        self._held = held
        self._refusal = refusal

    async def list_page(self, resource: Resource[Any], **_: Any) -> Page[Any]:
        self.lists.append(resource.path)
        if self._refusal is not None:
            raise self._refusal
        found = self._deployments if resource.plural == "deployments" else []
        items = tuple(msgspec.convert(each, resource.item) for each in found)
        return Page(items=items, resource_version="1")

    async def get_lease(self, namespace: str, name: str) -> Lease:
        if (namespace, name) not in self._held:
            raise NotFound("there is none", status=404)
        return Lease(spec=LeaseSpec(holder_identity=f"holder of {name}"), document={})


async def read(kube: FakeKube, **said: str) -> tuple[str, str]:
    """Return the place of the Lease and its holder."""
    found = await fetch_watcher_lease(kube, ClusterQuery(**{"namespace": "ccm", **said}))  # type: ignore[arg-type]
    if isinstance(found, Unavailable):
        return "unknown", found.reason
    return found.lease_name or "/".join(DEFAULT), found.holder


async def test_the_lease_is_the_one_that_the_watchers_workload_is_told():
    kube = FakeKube(RENAMED, held=(DEFAULT, MINE))
    assert await read(kube) == ("talos/mine", "holder of mine")
    assert set(kube.lists) == {
        f"/apis/apps/v1/namespaces/ccm/{kind}" for kind in ("deployments", "daemonsets", "statefulsets")
    }


async def test_what_the_caller_says_wins_each_for_itself():
    kube = FakeKube(RENAMED, held=(DEFAULT, MINE, FAR))
    assert await read(kube, lease_name=WATCHER_LEASE_NAME) == (
        f"talos/{WATCHER_LEASE_NAME}",
        f"holder of {WATCHER_LEASE_NAME}",
    )
    kube.lists.clear()
    assert await read(kube, lease_name=WATCHER_LEASE_NAME, lease_namespace="kube-system") == (
        f"kube-system/{WATCHER_LEASE_NAME}",
        f"holder of {WATCHER_LEASE_NAME}",
    )
    assert kube.lists == [], "nothing is left to be read"


async def test_a_lease_that_nobody_has_made_is_told_with_its_place():
    assert await read(FakeKube(RENAMED, held=(DEFAULT,))) == ("talos/mine", "")


async def test_of_several_releases_the_one_that_is_named_counts():
    two = (RENAMED, a_deployment("b"))
    assert await read(FakeKube(*two, held=(MINE,)), release="a") == ("talos/mine", "holder of mine")
    state, why = await read(FakeKube(*two))
    assert state == "unknown"
    assert "several releases: select one with --release" in why


@pytest.mark.parametrize("kube", [FakeKube(), FakeKube(refusal=NotFound("no such API", status=404))])
async def test_where_nothing_of_ours_is_installed_the_default_counts(kube: FakeKube):
    assert await read(kube) == ("/".join(DEFAULT), "")


async def test_who_may_not_read_the_workload_hears_of_the_default_lease_only_what_is_there():
    refusal = Forbidden("no right to list deployments", status=403)
    kube = FakeKube(RENAMED, held=(DEFAULT,), refusal=refusal)
    assert await read(kube) == ("/".join(DEFAULT), f"holder of {WATCHER_LEASE_NAME}")
    state, why = await read(FakeKube(RENAMED, refusal=refusal))
    assert state == "unknown"
    assert why.endswith("no right to list deployments; set --lease-name and --lease-namespace")


def test_each_service_that_leads_has_a_lease_of_its_own_in_the_same_namespace():
    container = Container(
        name="all",
        args=("--leader-elect-resource-namespace=talos", "--lifecycle-lease-name", "gone"),
    )
    assert get_lease_name(container, WATCHER_LEASE) == ("talos", WATCHER_LEASE_NAME)
    assert get_lease_name(container, LIFECYCLE_LEASE) == ("talos", "gone")
    assert get_lease_name(Container(name="all"), LIFECYCLE_LEASE) == ("kube-system", LIFECYCLE_LEASE_NAME)


# ---- the state of a Lease, which any client may have written


@pytest.mark.parametrize(
    "text", ["2026-03-01T11:59:59.000000Z", "2026-03-01T11:59:59", "2026-03-01T12:59:59+01:00"]
)
def test_a_renew_time_without_a_zone_is_in_utc(text: str):
    lease = read_lease_state(LeaseSpec(holder_identity="w", renew_time=text))
    assert lease.seconds_since_renewal(NOW) == 1
    assert lease.why_not_held(NOW) == ""


@pytest.mark.parametrize("text", [None, "", "yesterday"])
def test_without_a_valid_renew_time_nothing_holds_the_lease(text: str | None):
    lease = read_lease_state(LeaseSpec(holder_identity="w", renew_time=text), "talos/mine")
    assert not lease.is_held(NOW)
    assert lease.why_not_held(NOW) == "talos/mine of w has no renew time"


@pytest.mark.parametrize(("seconds", "is_held"), [(14, True), (15, True), (16, False)])
def test_a_lease_without_a_duration_lasts_15_seconds(seconds: int, is_held: bool):
    lease = LeaseState(holder="w", renewed_at=NOW - timedelta(seconds=seconds))
    assert lease.is_held(NOW) == is_held
    assert lease.is_held(NOW, slack=timedelta(seconds=1))
    assert read_lease_state(LeaseSpec()).why_not_held(NOW) == "has no holder"
