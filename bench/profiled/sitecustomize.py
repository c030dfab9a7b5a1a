"""Python imports this at startup: the process profiles itself from SIGUSR2 on and writes a file at exit."""

import atexit
import cProfile
import os
import signal
import sys
import time
from pathlib import Path


def _profile_on_signal(directory: str) -> None:
    profile = cProfile.Profile(time.process_time)
    # Python handles signals in the main thread, which also runs the event loop.
    signal.signal(signal.SIGUSR2, lambda *_: profile.enable())

    def write() -> None:
        profile.disable()
        module = next((part for part in sys.orig_argv if part.startswith("services")), "services")
        name = "all-in-one" if module == "services" else module.removeprefix("services.")
        profile.dump_stats(Path(directory) / f"{name}.prof")

    atexit.register(write)


if "TALOS_CCM_BENCH_PROFILES" in os.environ:
    _profile_on_signal(os.environ["TALOS_CCM_BENCH_PROFILES"])
