"""The commands of rendered containers, parsed by the services' own code."""

from pathlib import Path
from typing import Any

import msgspec

from libs.common.service.service import ServiceDefinition
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import ParsedSettings, read_settings
from libs.testbed.helm.chart import Manifest, select_service_deployments
from services.definitions import load_definitions

RUNS: dict[str, ServiceDefinition[Any]] = {each.spec.service: each for each in load_definitions()}


def arguments(container: dict[str, Any], found: list[Manifest], folder: Path) -> list[str]:
    """The container's arguments, with the config file in a folder of the test."""
    config = next(m for m in found if m["kind"] == "ConfigMap")
    path = folder / "ccm-config.yaml"
    path.write_text(config["data"]["ccm-config.yaml"])
    given: list[str] = container["args"]
    assert "--cloud-config=/etc/talos/ccm-config.yaml" in given
    return [f"--cloud-config={path}" if each.startswith("--cloud-config=") else each for each in given]


def reading_of(
    container: dict[str, Any], found: list[Manifest], folder: Path
) -> tuple[list[ServiceDefinition[Any]], ParsedSettings]:
    """The services that the container's command runs, and the settings that they read."""
    python, m, module = container["command"]
    assert (python, m) == ("python", "-m")
    runs = list(RUNS.values()) if module == "services" else [RUNS[module.removeprefix("services.")]]
    kinds: list[type[msgspec.Struct]] = [*(run.settings for run in runs), ProcessSettings]
    environment = {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}
    return runs, read_settings(kinds, arguments(container, found, folder), environment)


def of_deployments(found: list[Manifest]) -> dict[str, dict[str, Any]]:
    """The container of each service, which is the only one in its pod."""
    deployments = select_service_deployments(found).values()
    one = [deployment["spec"]["template"]["spec"]["containers"] for deployment in deployments]
    assert all(len(each) == 1 for each in one)
    return {container["name"]: container for (container,) in one}
