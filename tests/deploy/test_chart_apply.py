"""A real API server accepts every profile in a strict server-side apply, which is idempotent."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from libs.testbed.helm.chart import Manifest
from tests.deploy.api_server import ApiServer
from tests.deploy.profiles import DEPLOYED, PROFILES, rendered

RESTRICTED = "pod-security.kubernetes.io/warn"
SPARED = "pod-security.kubernetes.io/enforce"  # as Talos for kube-system: the server only warns


def namespace(name: str) -> Manifest:
    """A Namespace in which the server warns about violations of the level restricted."""
    labels = {RESTRICTED: "restricted", SPARED: "privileged"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


@pytest.fixture(scope="module", autouse=True)
async def namespaces(api_server: ApiServer) -> AsyncIterator[None]:
    await api_server.apply(namespace("kube-system"))  # cannot be deleted
    async with api_server.with_objects([namespace("talos-system")]):
        yield


@pytest.mark.parametrize("profile", PROFILES)
async def test_the_api_server_accepts_every_object_and_a_second_apply_changes_nothing(
    profile: str, api_server: ApiServer
):
    manifests = await asyncio.to_thread(rendered, profile)
    async with api_server.with_objects(manifests) as applied:
        for manifest, answer in zip(manifests, applied, strict=True):
            assert answer.status == 201, f"{manifest['kind']} {manifest['metadata']['name']}: {answer.object}"
        warnings = [warning for answer in applied for warning in answer.warnings]
        if profile in DEPLOYED:
            assert warnings == [], "pods are restricted"
        else:
            (warning,) = warnings
            found = warning.partition(r"\"restricted:latest\": ")[2]
            assert found.startswith("host namespaces (hostNetwork=true), probe or lifecycle host (")
            assert found.count("), ") == 1, "the kubelet probes the loopback address of the node"
        again = [await api_server.apply(manifest) for manifest in manifests]
        for manifest, answer in zip(manifests, again, strict=True):
            assert answer.status == 200, f"{manifest['kind']} {manifest['metadata']['name']}: {answer.object}"
            assert answer.object["metadata"].get("generation", 1) == 1


async def test_the_api_server_rejects_an_unknown_field(api_server: ApiServer):
    manifests = await asyncio.to_thread(rendered, "default")
    deployment = next(m for m in manifests if m["kind"] == "Deployment")
    wrong = {**deployment, "spec": {**deployment["spec"], "replica": 1}}
    answer = await api_server.apply(wrong)
    await api_server.delete(deployment)
    assert answer.status in (400, 422, 500), answer.object
    assert "replica" in answer.object["message"]
