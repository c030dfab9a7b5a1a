"""Reads the progress of the nodes from Kubernetes and from the services' logs, on either bus."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from cli.demo.node_progress import DemoProgress, LogLine, parse_log_line
from libs.common.kube.api import KubeApi, raise_unreadable
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.kube.objects import Item, Resource
from libs.common.kube.reflector import Reflector
from libs.common.kube.watch_events import Changed, ListSnapshot, WatchEvent

# The services log every milestone with these flags, in lines that `parse_log_line` parses.
LOG_FLAGS = ("--v=4", "--logging-format=json")


class LogFollower:
    """Reads growing log files; each line is read once, when it is complete."""

    def __init__(self, files: Iterable[BinaryIO], progress: DemoProgress) -> None:
        self._rests = dict.fromkeys(files, b"")
        self._progress = progress

    def read_new_lines(self) -> list[LogLine]:
        """Pass the new lines to the progress, and return those that the running demo prints."""
        announced = []
        for file, rest in self._rests.items():
            *lines, self._rests[file] = (rest + file.read()).split(b"\n")
            for line in filter(None, map(parse_log_line, lines)):
                self._progress.apply_log_line(line)
                announced += [line] if line.announcement else []
        return announced


@contextlib.contextmanager
def follow_logs(paths: Iterable[Path], progress: DemoProgress) -> Iterator[LogFollower]:
    """Open the log files at their beginning."""
    with contextlib.ExitStack() as files:
        yield LogFollower([files.enter_context(path.open("rb")) for path in paths], progress)


@contextlib.asynccontextmanager
async def watch_objects(
    kubeconfig: Path, resource: Resource[Item], on_object: Callable[[Item, datetime], None]
) -> AsyncIterator[None]:
    """Watch objects in Kubernetes and pass each one with the time to the callback."""
    api = KubeApi(load_kube_config(kubeconfig, {}), user_agent="talos-ccm-demo")

    async def see(event: WatchEvent[Item]) -> None:
        match event:
            case ListSnapshot(items=items):
                for item in items:
                    on_object(item, datetime.now(UTC))
            case Changed(item=item):
                on_object(item, datetime.now(UTC))

    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(Reflector(api, resource, on_unreadable=raise_unreadable).run(see))
            yield
            watch.cancel()
    finally:
        await api.close()
