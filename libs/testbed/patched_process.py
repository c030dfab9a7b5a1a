"""`python -m libs.testbed.patched_process MODULE ARGUMENT...` runs a module that a harness has patched.

A harness changes the behaviour of a service by the functions that PATCHES names: the services themselves
contain no switch. This file imports nothing of this tree, because a bench measures such a process.
"""

import os
import runpy
import sys
from importlib import import_module
from typing import Final

PATCHES: Final = "TALOS_CCM_TESTBED_PATCHES"  # functions without arguments: "module:name,module:name"
PROCESS_NAME: Final = "TALOS_CCM_TESTBED_PROCESS"  # the environment of each process has its name


def main() -> None:
    """Call the functions that the environment names, in their order, and run the module."""
    for name in os.environ[PATCHES].split(","):
        module, _, function = name.partition(":")
        getattr(import_module(module), function)()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
