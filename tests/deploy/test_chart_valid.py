"""Objects are valid for each version of Kubernetes, and a real API server accepts them."""

import asyncio
import importlib.resources
import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest
from kubernetes_validate import utils as published
from referencing import Registry, Resource

from libs.testbed.helm.chart import Manifest
from tests.deploy.api_server import ApiServer
from tests.deploy.profiles import DEPLOYED, PROFILES, rendered, rendered_for

OLDEST = (1, 29)
VERSIONS = [
    version
    for version in dict.fromkeys(published.all_versions())
    if tuple(map(int, version.split(".")[:2])) >= OLDEST
]
# For Kubernetes 1.30 and later the objects are the same: `rendered` is for the newest.
ALIKE = [version for version in VERSIONS if tuple(map(int, version.split(".")[:2])) >= (1, 30)]
TALOS = "talos.dev/v1alpha1"


class Schemas:
    """The schemas of one version; definitions are read once."""

    def __init__(self, version: str) -> None:
        files = importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema"
        self._folder = files / f"v{version}-local-strict"
        definitions: Resource[Any] = Resource.from_contents(self._read("_definitions.json"))
        self._registry: Registry[Any] = definitions @ Registry()

    def mistakes(self, manifest: dict[str, Any]) -> list[str]:
        group, _, version = manifest["apiVersion"].rpartition("/")
        parts = [manifest["kind"].lower(), *filter(None, [group.split(".")[0]]), version]
        schema = self._read(f"{'-'.join(parts)}.json")
        validator = jsonschema.Draft202012Validator(schema, registry=self._registry)
        return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]

    def _read(self, name: str) -> Any:
        return json.loads((self._folder / name).read_text())


def distinct(kubernetes: str) -> list[dict[str, Any]]:
    """All different objects of all profiles for that version."""
    found = {
        json.dumps(manifest, sort_keys=True)
        for profile in PROFILES
        for manifest in (rendered(profile) if kubernetes in ALIKE else rendered_for(profile, kubernetes))
    }
    return [json.loads(text) for text in sorted(found)]


def test_the_versions_are_1_29_to_1_37():
    assert [version.rpartition(".")[0] for version in VERSIONS] == [f"1.{minor}" for minor in range(29, 38)]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_field_is_valid_in_that_version_of_kubernetes(version: str):
    schemas = Schemas(version)
    checked = 0
    for manifest in distinct(version):
        if manifest["apiVersion"] == TALOS:
            continue  # a custom resource; the API server judges it below
        checked += 1
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        assert schemas.mistakes(manifest) == [], name
    assert checked > 50


def test_the_objects_are_the_same_for_kubernetes_1_30_and_later():
    for version in (ALIKE[0], ALIKE[-1]):
        assert rendered_for("default", version) == rendered("default")


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
