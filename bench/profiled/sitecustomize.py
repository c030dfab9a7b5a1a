"""Python imports this as it starts: the process profiles itself, and writes that at its end."""

import atexit
import cProfile
import os
import sys
from pathlib import Path


def _profile() -> None:
    directory = os.environ.get("TALOS_CCM_BENCH_PROFILES")
    if not directory:
        return
    profile = cProfile.Profile()

    def write() -> None:
        profile.disable()
        module = next((a for a in sys.orig_argv if a.startswith("services")), "services")
        name = "all-in-one" if module == "services" else module.removeprefix("services.")
        profile.dump_stats(Path(directory) / f"{name}.prof")

    atexit.register(write)
    profile.enable()


_profile()
