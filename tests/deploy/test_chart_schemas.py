"""Every object of every profile is one that Kubernetes 1.29 to the newest takes, with no field unknown."""

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
# Kubernetes from 1.30 on gets the same objects: `rendered` is for the newest.
ALIKE = [version for version in VERSIONS if tuple(map(int, version.split(".")[:2])) >= (1, 30)]
TALOS = "talos.dev/v1alpha1"


class Schemas:
    """Of one version; its definitions are read once."""

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
    """All objects of all profiles on that version, each once."""
    found = {
        json.dumps(manifest, sort_keys=True)
        for profile in PROFILES
        for manifest in (rendered(profile) if kubernetes in ALIKE else rendered_for(profile, kubernetes))
    }
    return [json.loads(text) for text in sorted(found)]


def test_the_versions_reach_from_1_29_to_1_37():
    assert [version.rpartition(".")[0] for version in VERSIONS] == [f"1.{minor}" for minor in range(29, 38)]


@pytest.mark.parametrize("version", VERSIONS)
def test_that_version_of_kubernetes_knows_every_field(version: str):
    schemas = Schemas(version)
    checked = 0
    for manifest in distinct(version):
        if manifest["apiVersion"] == TALOS:
            continue  # not Kubernetes' own; test_chart_apply.py has it
        checked += 1
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        assert schemas.mistakes(manifest) == [], name
    assert checked > 50


def test_kubernetes_from_1_30_on_gets_the_same_objects():
    for version in (ALIKE[0], ALIKE[-1]):
        assert rendered_for("default", version) == rendered("default")


def test_a_field_that_nobody_knows_is_seen():
    deployment = next(m for m in rendered("default") if m["kind"] == "Deployment")
    assert Schemas(VERSIONS[0]).mistakes({**deployment, "spce": {}})
