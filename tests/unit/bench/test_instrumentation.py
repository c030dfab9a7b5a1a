"""The patch of a measured process does not weigh in its memory."""

import subprocess
import sys

from libs.testbed.service_start import ROOT

PROGRAM = """
import sys
import libs.testbed.patched_process, tests.bench.instrumentation
print(*(name for name in sys.modules if name.startswith(("libs.", "tests.", "services."))))
"""


def test_a_measured_process_imports_nothing_of_this_tree_but_its_patch():
    imported = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert sorted(imported.stdout.split()) == [
        "libs.testbed",
        "libs.testbed.patched_process",
        "tests.bench",
        "tests.bench.instrumentation",
    ]
