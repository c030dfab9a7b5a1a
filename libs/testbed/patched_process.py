"""`python -m libs.testbed.patched_process MODULE ARGUMENT...`: patches a service in its process, and runs it.

A harness changes the behaviour of a service like this: the services themselves contain no switch.
"""

import os
import runpy
import sys
from importlib import import_module
from typing import Final

PATCHES: Final = "TALOS_CCM_TESTBED_PATCHES"  # functions without arguments: "module:name,module:name"


def apply_patches(names: str) -> None:
    """Call the functions of these names, in their order."""
    for name in names.split(","):
        module, _, function = name.partition(":")
        getattr(import_module(module), function)()


if __name__ == "__main__":
    del sys.argv[0]
    apply_patches(os.environ[PATCHES])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
