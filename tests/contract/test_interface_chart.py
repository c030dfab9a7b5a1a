"""What an installation consists of: the rendered manifests, the chart's values, and the compose file."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

from libs.testbed.helm.chart import CHART, parse_manifests
from libs.testbed.helm.renders import MANIFESTS, PERMISSIONS_FILE
from tests.contract.interface_snapshot import assert_unchanged

DEPLOY: Final = CHART.parents[1]
COMPOSE: Final = DEPLOY / "compose" / "compose.yaml"
PROFILES: Final = sorted(path.stem for path in MANIFESTS.glob("*.yml"))
# An image, a version or a size may change in any release. Texts are for readers.
NOT_THE_INTERFACE: Final = {
    "image",
    "imagePullPolicy",
    "resources",
    "helm.sh/chart",
    "app.kubernetes.io/version",
    "message",
    "messageExpression",
    "description",
    "title",
    "build",
    "pull_policy",
}
ENTRY_POINTS: Final = "services."


def reduced(value: Any) -> Any:
    """The value without versions, texts and sizes."""
    match value:
        case dict():
            return {
                str(key): reduced(each)
                for key, each in value.items()
                if key not in NOT_THE_INTERFACE and not str(key).startswith("checksum/")
            }
        case list():
            return [reduced(each) for each in value]
        case _:
            return value


def manifest(path: Path) -> dict[str, Any]:
    """The objects of a manifest by kind, namespace and name; no two may be the same object."""
    found: dict[str, Any] = {}
    for document in parse_manifests(path.read_text()):
        metadata = document["metadata"]
        key = "/".join((document["kind"], metadata.get("namespace", ""), metadata["name"]))
        assert key not in found, f"{path.name} has two objects {key}"
        found[key] = reduced(document)
    return found


def flattened(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of the values with its default; a list and an empty map are one value."""
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for key, each in value.items():
        yield from flattened(each, f"{path}.{key}" if path else key)


def without_module(command: Any) -> Any:
    """The command of a container; a module of the testbed is no interface, an entry point of a service is."""
    if not isinstance(command, list) or command[:2] != ["python", "-m"]:
        return command
    module = command[2] if command[2].startswith(ENTRY_POINTS) else "<module of the testbed>"
    return ["python", "-m", module, *command[3:]]


def asked_by_probe(command: list[str]) -> list[str]:
    """The ports and paths in the script of a health check, else its command."""
    if command[:3] != ["CMD", "python", "-c"]:
        return command
    return re.findall(r"\b\d{4,5}\b|(?<=\")/\w+", command[3])


@pytest.mark.parametrize("profile", PROFILES)
def test_the_objects_of_a_rendered_manifest_are_unchanged(profile: str):
    # Another image tag is the only difference of the edge manifests.
    name = profile.removesuffix("-edge").replace("-", "_")
    assert_unchanged(f"chart_{name}", manifest(MANIFESTS / f"{profile}.yml"))


def test_the_rights_of_each_service_are_unchanged():
    assert_unchanged("chart_rights", yaml.safe_load(PERMISSIONS_FILE.read_text()))


def test_the_values_of_the_chart_and_their_defaults_are_unchanged():
    values = dict(flattened(yaml.safe_load((CHART / "values.yaml").read_text())))
    versions = {key: "<a version>" for key, value in values.items() if key.endswith(".tag") and value}
    assert_unchanged("chart_values", values | versions)


def test_the_values_that_the_schema_accepts_are_unchanged():
    schema = msgspec.json.decode((CHART / "values.schema.json").read_bytes())
    assert_unchanged("chart_values_schema", reduced_schema(schema))


def reduced_schema(schema: Any) -> Any:
    """The schema without its texts; below `properties` every key is a value of the chart."""
    match schema:
        case dict():
            return {
                key: {name: reduced_schema(each) for name, each in value.items()}
                if key == "properties"
                else reduced_schema(value)
                for key, value in schema.items()
                if key not in ("title", "description")
            }
        case list():
            return [reduced_schema(each) for each in schema]
        case _:
            return schema


def test_the_services_of_the_compose_file_are_unchanged():
    compose = yaml.safe_load(COMPOSE.read_text())
    services = {name: reduced(service) for name, service in compose["services"].items()}
    for service in services.values():
        service["command"] = without_module(service.get("command"))
        if "healthcheck" in service:
            service["healthcheck"] = asked_by_probe(service["healthcheck"]["test"])
    assert_unchanged(
        "compose", {"name": compose["name"], "services": services, "volumes": compose["volumes"]}
    )
