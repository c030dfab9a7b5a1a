"""Python imports this as it starts: the process profiles itself from SIGUSR2 on, to a file at its end."""

import atexit
import cProfile
import os
import signal
import sys
import time
from pathlib import Path


def _profile_when_told(directory: str) -> None:
    profile = cProfile.Profile(time.process_time)
    # Signals are handled in the main thread, which is the one that the event loop runs in.
    signal.signal(signal.SIGUSR2, lambda *_: profile.enable())

    def write() -> None:
        profile.disable()
        module = next((part for part in sys.orig_argv if part.startswith("services")), "services")
        name = "all-in-one" if module == "services" else module.removeprefix("services.")
        profile.dump_stats(Path(directory) / f"{name}.prof")

    atexit.register(write)


if "TALOS_CCM_BENCH_PROFILES" in os.environ:
    _profile_when_told(os.environ["TALOS_CCM_BENCH_PROFILES"])
