"""Every object of every profile is valid for Kubernetes 1.29 to the newest, without unknown fields."""

import importlib.resources
import json
from typing import Any

import jsonschema
import pytest
from kubernetes_validate import utils as published
from referencing import Registry, Resource

from tests.deploy.profiles import PROFILES, rendered, rendered_for

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
            continue  # a custom resource; test_chart_apply.py tests it
        checked += 1
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        assert schemas.mistakes(manifest) == [], name
    assert checked > 50


def test_the_objects_are_the_same_for_kubernetes_1_30_and_later():
    for version in (ALIKE[0], ALIKE[-1]):
        assert rendered_for("default", version) == rendered("default")


def test_an_unknown_field_is_found():
    deployment = next(m for m in rendered("default") if m["kind"] == "Deployment")
    assert Schemas(VERSIONS[0]).mistakes({**deployment, "spce": {}})
