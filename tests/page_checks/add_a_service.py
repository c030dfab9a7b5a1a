"""What docs/contributing/add-a-service.md promises."""

import random
import runpy
import sys
from datetime import UTC, datetime
from pathlib import Path

import yaml

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.contract.controllers import NODE_CONTROLLER_NAMES
from libs.common.contract.services import SERVICES
from libs.common.service.service import Dependencies
from libs.common.settings.read_settings import read_settings
from services.bootstrap.nats_permissions import build_service_permissions
from services.definitions import load_definitions, load_settings_types
from tools import metrics_page

ROOT = Path(__file__).parents[2]


def check(name: str) -> None:
    """Check row, folder, permissions, chart values, compose, metrics page and docs."""
    (spec,) = (spec for spec in SERVICES if spec.service == name)
    (definition,) = (each for each in load_definitions() if each.spec is spec)
    settings = read_settings([load_settings_types()[name]], [], {}).get(definition.settings)
    dependencies = Dependencies(
        bus=MemoryBus(MemoryServer()), kube=None, monotonic=lambda: 0.0, now=lambda: datetime.now(UTC),
        random=random.Random(0), identity="host_1",
    )  # fmt: skip
    assert definition.build(dependencies, settings).problems(), "it is ready before it follows the stream"
    assert spec.controller.name in NODE_CONTROLLER_NAMES
    allowed = build_service_permissions(spec)
    assert {*spec.publishes} <= {*allowed.allow_publish}
    assert allowed.allow_subscribe == (f"_INBOX_{name}.>",)
    check_files(name)
    check_program(name)


def check_files(name: str) -> None:
    """Check that chart values, compose, metrics page and docs name the service."""
    values = yaml.safe_load((ROOT / "deploy/k8s/chart/values.yaml").read_text())
    assert [*values["services"]] == [spec.service for spec in SERVICES]
    compose = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())
    assert f"services.{name}" in compose["services"][name]["command"]
    assert f", {name} |" in metrics_page.PAGE.read_text()
    assert f"| `{name}` |" in (ROOT / "docs/design.md").read_text()


def check_program(name: str) -> None:
    """Check that the folder is a package, and that the service is a program."""
    assert __import__(f"services.{name}", fromlist=["__doc__"]).__doc__
    sys.argv = [f"python -m services.{name}", "--help"]
    status = None
    try:
        runpy.run_module(f"services.{name}", run_name="__main__")
    except SystemExit as ended:
        status = ended.code
    assert status == 0
