"""The environment of a bench."""

import os
import platform
import re
from pathlib import Path

import msgspec

from libs.testbed.control_plane.build import KUBE


class HostInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the versions that the figures depend on."""

    processor: str
    cores: int
    memory_gb: float
    python: str
    kubernetes: str
    load_before: float  # load average of the minute before the bench; other load makes every figure worse


def read_host() -> HostInfo:
    """Read it (Linux)."""
    model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    version = re.search(r"gitVersion=(\S+)", KUBE.ldflags)
    return HostInfo(
        processor=model[1] if model else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(int(memory[1]) / 1e6, 1) if memory else 0.0,
        python=platform.python_version(),
        kubernetes=version[1] if version else "unknown",
        load_before=round(os.getloadavg()[0], 2),
    )
