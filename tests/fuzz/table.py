"""All targets by name, for both runners: the tests, and `make fuzz`."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.fuzz import (
    bus_targets,
    cloud_targets,
    file_targets,
    kube_targets,
    request_targets,
    talos_targets,
)
from tests.fuzz.target import Target

SAMPLES: Final = Path(__file__).parent / "samples"  # one folder per target: inputs that once failed
TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for module in (
        bus_targets,
        cloud_targets,
        file_targets,
        kube_targets,
        request_targets,
        talos_targets,
    )
    for target in module.TARGETS
}


@functools.cache
def seeds_of(name: str) -> tuple[bytes, ...]:
    """Valid inputs of a target. Some are signed or recorded, which takes longer than to parse them."""
    return TARGETS[name].seeds()
