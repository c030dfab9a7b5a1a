"""The alerts are valid for Prometheus, and each fires by its trial and by nothing else."""

import subprocess
from pathlib import Path
from typing import Final

from libs.testbed.prometheus import find_or_fetch
from tests.observe.observed_cluster import RULES

FOLDER: Final = Path(__file__).parent


def promtool(*arguments: str | Path) -> str:
    """Run promtool, which must succeed, and return its output."""
    argv = [find_or_fetch().promtool, *arguments]
    done = subprocess.run(argv, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_finds_nothing_wrong_with_the_rules():
    assert "SUCCESS" in promtool("check", "rules", RULES)


def test_every_test_case_of_the_alerts_passes():
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yaml")
