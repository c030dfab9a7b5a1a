"""A sitting leaves its results and the logs of violations."""

import asyncio
from pathlib import Path

from chaos.results import Results
from chaos.sitting import Sitting
from chaos.version_faults import get_older_tree


def test_the_older_tree_is_removed_after_the_last_run(tmp_path: Path):
    results = Results(tmp_path / "results.jsonl")
    sitting = Sitting(seed=1, results=results, directory=tmp_path, keep_logs=False, report=print)
    get_older_tree(tmp_path).mkdir()
    asyncio.run(sitting.run_pairs([]))
    assert not list(tmp_path.iterdir())
