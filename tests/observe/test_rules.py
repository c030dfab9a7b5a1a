"""The rules as Prometheus' own tool judges them: well formed, and each trial of an alert as it is written."""

import subprocess
from pathlib import Path
from typing import Final

from libs.testbed.prometheus import find_or_fetch
from tests.architecture.sources import ROOT

FOLDER: Final = ROOT / "deploy" / "observability"


def promtool(*arguments: str | Path) -> str:
    """What it says; it must be content."""
    argv = [find_or_fetch().promtool, *arguments]
    done = subprocess.run(argv, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_finds_nothing_wrong_with_the_rules():
    assert "SUCCESS" in promtool("check", "rules", "rules.yaml")


def test_every_trial_of_the_alerts_goes_as_it_is_written():
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yaml")
