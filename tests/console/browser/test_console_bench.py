"""The commands that measure the console print their figures; their values are not judged.

A figure that is the difference of two small measurements may be below zero.
"""

import re
import subprocess
import sys

import pytest

from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.service_start import ROOT

pytestmark = pytest.mark.real_servers


@pytest.mark.parametrize(
    ("command", "figures"),
    [
        (
            ["tests.bench.console.page", "--nodes=5", "--runs=1"],
            [
                "overview: first paint, ms",
                "change on the bus until it is in the page, ms",
                "scrolling: longest task, CPU ms",
                "memory of the console, MB",
            ],
        ),
        (
            ["tests.bench.console.cost", "--only=alone", "--messages=20", "--rounds=1"],
            ["one pulse with 0 Events", "one message to the console"],
        ),
    ],
)
def test_a_measurement_of_the_console_prints_figures(command: list[str], figures: list[str]):
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    for figure in figures:
        assert re.search(rf"^{re.escape(figure)}[^:\n]*: -?\d", done.stdout, re.MULTILINE), done.stdout
