"""Secrets, ConfigMaps and Leases that services and the bootstrap write and read, with their content."""

from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from libs.common.kube.api import KubeApi
from libs.common.kube.lease_lock import LeaseLock
from services.bootstrap.kubernetes_key_store import KubernetesKeyStore
from services.bootstrap.resource_names import ResourceNames
from services.bootstrap.server_files import (
    ServerSpec,
    drop_old_authority,
    ensure_installation_keys,
    write_server_files,
)
from services.ipam.claims_api import KubernetesClaims
from services.ipam.pages import Claim, Page, UnreadablePage, decode_page, encode_page, page_range_of
from services.lifecycle.deletion_budget import LeaseDeletionBudget
from services.lifecycle.deletion_limit import decode_deletions
from services.lifecycle.settings import LifecycleSettings
from services.watcher.settings import WatcherSettings
from tests.bootstrap_actors import make_server_config
from tests.builders import NOW
from tests.contract.interface_snapshot import assert_unchanged
from tests.manual_clock import ManualClock
from tests.recorded_requests import Document, RecordedRequests

NAMES = ResourceNames(namespace="kube-system", prefix="ccm")
HOLDER = "host-a_0b6c7f1e-0000-4000-8000-000000000001"
PAGES = (
    Page(
        range="10.240.0.0/12",
        claims={
            "10.244.1.0/24": Claim(block="10.244.1.0/24", uid="uid-2", node="web-2", gone_since=NOW),
            "10.244.0.0/24": Claim(block="10.244.0.0/24", uid="uid-1", node="web-1"),
        },
    ),
    Page(
        range="fd00:10:244::/48",
        resource_version="7",
        claims={"fd00:10:244::/64": Claim(block="fd00:10:244::/64", uid="uid-3", node="")},
    ),
)


async def test_the_bootstrap_makes_secrets_a_config_map_and_files_of_these_names(
    kube: KubeApi, recorded: RecordedRequests, tmp_path: Path
):
    store = KubernetesKeyStore(kube, NAMES.namespace, "a-release")
    kept = await ensure_installation_keys(store, NAMES, NOW)
    server = make_server_config(
        name="nats-0", listen_address="::", files_dir=tmp_path / "out", store_dir=tmp_path, store_bytes=1
    )
    wanted = ServerSpec(server=server, tls_names=NAMES.list_hosts(), certificate_lifetime=timedelta(days=1))
    write_server_files(tmp_path / "out", wanted, kept, NOW)
    drop_old_authority(tmp_path / "out")
    found = {
        "requests": sorted(map(with_keys_only, recorded.requests), key=str),
        "secrets": NAMES.secrets,
        "hosts": NAMES.list_hosts(),
        "routes": NAMES.list_routes(3),
        "files": sorted(path.name for path in (tmp_path / "out").iterdir()),
    }
    assert_unchanged("kubernetes_bootstrap", found)


def with_keys_only(request: Document) -> Document:
    """The keys of the data: its content is random."""
    body = request.get("body", {})
    return request | {"body": body | {"data": sorted(body["data"])}} if "data" in body else request


async def test_the_pages_of_claims_have_these_names_labels_and_content(
    kube: KubeApi, recorded: RecordedRequests
):
    claims = KubernetesClaims(kube)
    for page in PAGES:
        stored = encode_page(page)
        assert not isinstance(decode_page(stored), UnreadablePage)
        await claims.write_page(stored)
        await claims.read_page(stored.name)
    no_pages = {"items": [], "metadata": {"resourceVersion": "9"}}
    recorded.objects["/api/v1/namespaces/kube-node-lease/configmaps"] = no_pages
    await claims.list_pages()
    blocks = ("10.244.7.0/24", "10.0.0.0/12", "fd00:10:244:7::/64", "2001:db8::/48")
    found = {
        "requests": recorded.requests,
        "page_of_a_block": {block: page_range_of(block) for block in blocks},
    }
    assert_unchanged("kubernetes_pages_of_claims", found)


async def test_a_lease_has_this_content_from_its_first_holder_to_its_release(
    kube: KubeApi, recorded: RecordedRequests, tmp_path: Path
):
    clock = ManualClock()
    ours, other = (a_lock(kube, identity, clock) for identity in (HOLDER, HOLDER.replace("-a_", "-b_")))
    await ours.try_acquire_or_renew()
    recorded.objects["/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a-lease"] = as_stored(
        recorded
    )
    await ours.try_acquire_or_renew()
    await other.try_acquire_or_renew()
    await other.report_standby()
    await ours.release()
    found = {"requests": recorded.requests, "settings": lease_settings()}
    assert_unchanged("kubernetes_lease", found)


def a_lock(kube: KubeApi, identity: str, clock: ManualClock) -> LeaseLock:
    return LeaseLock(
        kube, namespace="kube-system", name="a-lease", identity=identity, now=lambda: NOW, clock=clock
    )


def as_stored(recorded: RecordedRequests) -> Document:
    """The Lease as Kubernetes holds it after the last write."""
    body: Document = recorded.requests[-1]["body"]
    return body | {"metadata": body["metadata"] | {"resourceVersion": "101"}}


def lease_settings() -> dict[str, Any]:
    """Names and times of the Leases without any flag."""
    watcher, lifecycle = WatcherSettings(), LifecycleSettings()
    return {
        "watcher": [
            watcher.lease_namespace,
            watcher.lease_name,
            watcher.lease_duration_seconds,
            watcher.renew_deadline_seconds,
            watcher.retry_period_seconds,
        ],
        "lifecycle": [
            lifecycle.lease_namespace,
            lifecycle.lease_name,
            lifecycle.lease_duration_seconds,
            lifecycle.renew_deadline_seconds,
            lifecycle.retry_period_seconds,
        ],
    }


@pytest.mark.parametrize("holder", ["", HOLDER])
async def test_the_record_of_deletions_is_written_to_the_lease_of_lifecycle(
    kube: KubeApi, recorded: RecordedRequests, holder: str
):
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/talos-ccm-lifecycle"
    if holder:
        recorded.objects[path] = {"metadata": {"name": "a"}, "spec": {"holderIdentity": holder}}
    record = LeaseDeletionBudget(
        kube,
        namespace="kube-system",
        name="talos-ccm-lifecycle",
        holder=holder,
        write_lock=nullcontext(),
        limit=5,
        request_timeout_seconds=2.5,
        now=lambda: NOW,
    )
    assert await record.spend("web-1") == ""
    recorded.objects[path] = as_stored(recorded)
    assert await record.spend("web-2") == ""
    [text] = as_stored(recorded)["metadata"]["annotations"].values()
    deletions = decode_deletions(text)
    assert isinstance(deletions, tuple)
    assert [deletion.node for deletion in deletions] == ["web-1", "web-2"]
    assert_unchanged(f"kubernetes_deletion_record_{'held' if holder else 'unheld'}", recorded.requests)
