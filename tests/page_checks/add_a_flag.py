"""What docs/contributing/add-a-flag-or-limit.md promises."""

import random
from datetime import UTC, datetime

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.service.service import Dependencies
from libs.common.settings.read_settings import list_options, read_settings
from services.metadata.machines.talos_client import open_talos
from services.metadata.settings import MetadataSettings


def check(name: str) -> None:
    """Check the way of the flag from the command line to the Talos API client."""
    assert name in {option.flag.name for option in list_options(MetadataSettings)}
    settings = read_settings([MetadataSettings], [f"--{name}=1500ms"], {}).get(MetadataSettings)
    dependencies = Dependencies(
        bus=MemoryBus(MemoryServer()), kube=None, monotonic=lambda: 0.0, now=lambda: datetime.now(UTC),
        random=random.Random(0), identity="host_1",
    )  # fmt: skip
    assert open_talos(dependencies, settings)._session._connect_seconds == 1.5
