"""A sitting leaves its results and the logs of violations."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from chaos import run
from chaos.cluster import ChaosCluster
from chaos.results import Results
from chaos.sitting import Sitting, UndisturbedFailed
from chaos.version_faults import get_older_tree


def test_the_older_tree_is_removed_after_the_last_run(tmp_path: Path):
    results = Results(tmp_path / "results.jsonl")
    sitting = Sitting(seed=1, results=results, directory=tmp_path, keep_logs=False, report=print)
    get_older_tree(tmp_path).mkdir()
    asyncio.run(sitting.run_pairs([]))
    assert not list(tmp_path.iterdir())


async def test_a_cluster_that_does_not_start_is_tried_twice_and_reported_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class NotStarting(AbstractAsyncContextManager[ChaosCluster]):
        async def __aenter__(self) -> ChaosCluster:
            inner = ExceptionGroup("inner", [TimeoutError("nats-2 is not healthy after 30 s")])
            raise ExceptionGroup("outer", [inner])

        async def __aexit__(self, *_: object) -> None:
            raise AssertionError("never entered")

    monkeypatch.setattr(run, "start_cluster", lambda run_dir, mode: NotStarting())
    lines: list[str] = []
    results = Results(tmp_path / "results.jsonl")
    sitting = Sitting(seed=1, results=results, directory=tmp_path, keep_logs=False, report=lines.append)
    with pytest.raises(UndisturbedFailed):
        await sitting.run_pairs([1])
    assert [line.split("; logs")[0].strip() for line in lines if "NOT RUN" in line] == [
        "NOT RUN: the cluster did not start: nats-2 is not healthy after 30 s"
    ] * 2
    assert len(sitting.not_run) == 1
    assert results.records == []
