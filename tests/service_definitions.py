"""The definition of every service, in the order of the service table."""

from typing import Any, Final

from libs.common.service.service import ServiceDefinition
from services.definitions import load_definitions

DEFINITIONS: Final[tuple[ServiceDefinition[Any], ...]] = load_definitions()
