"""The parts of each service, found by the names that every service folder uses."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import msgspec

from libs.common.contract.services import SERVICE_TABLE, ServiceSpec
from libs.common.service.service import ServiceDefinition


def load_definitions() -> tuple[ServiceDefinition[Any], ...]:
    """Return `<NAME>_DEFINITION` of `services.<name>.service` for each service."""
    return tuple(
        getattr(import_module(f"services.{spec.service}.service"), f"{spec.service.upper()}_DEFINITION")
        for spec in SERVICE_TABLE
    )


def load_settings_types(specs: Iterable[ServiceSpec] = SERVICE_TABLE) -> dict[str, type[msgspec.Struct]]:
    """Return `<Name>Settings` of `services.<name>.settings` for each service; loads less than definitions."""
    return {
        spec.service: getattr(
            import_module(f"services.{spec.service}.settings"), f"{spec.service.capitalize()}Settings"
        )
        for spec in specs
    }
