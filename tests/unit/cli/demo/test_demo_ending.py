"""How the demo ends before it has begun."""

import subprocess
import sys

WITHOUT_TESTBED = """
import sys
sys.modules["libs.testbed"] = None
from cli.__main__ import main
main(["demo"])
"""


def test_in_an_image_which_holds_no_testbed_the_demo_says_so():
    told = subprocess.run(
        [sys.executable, "-c", WITHOUT_TESTBED], capture_output=True, text=True, check=False
    )
    assert told.returncode == 1
    assert "in a checkout, run make demo" in told.stderr
    assert "Traceback" not in told.stderr
