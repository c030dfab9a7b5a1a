"""How a process of the services is started: by a new Python, as a fork, or from an older tree."""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from libs.common.contract.services import SERVICES
from libs.testbed.child_process import ChildProcess
from libs.testbed.fork_server import ForkServer
from libs.testbed.older_tree import older_tree_of

ROOT: Final = Path(__file__).parents[2]
_PRELOADED: Final = (
    "libs.common.service.run_process",
    *(f"services.{spec.service}.service" for spec in SERVICES),
)
_fork_servers: list[ForkServer] = []  # the innermost block of fork_services comes last


@contextlib.contextmanager
def fork_services(run_dir: Path) -> Iterator[None]:
    """During the block, fork the processes of services from one that has imported all services.

    So each start costs half a second of CPU less. The resident memory of such a process is not its own.
    """
    with ForkServer.open(run_dir, *_PRELOADED) as server:
        _fork_servers.append(server)
        try:
            yield
        finally:
            _fork_servers.pop()


def start_service(
    name: str, service: str, arguments: Sequence[str], run_dir: Path, env: Mapping[str, str]
) -> ChildProcess:
    """Start the process `name`, such as "ipam-2", of a service or "all-in-one"; it logs to `<name>.log`."""
    module = "services" if service == "all-in-one" else f"services.{service}"
    argv = [sys.executable, "-m", module, *arguments]
    older = older_tree_of(name)
    if older is not None:
        return ChildProcess.start(name, older.argv(argv), run_dir, env={"PYTHONPATH": str(older.root), **env})
    if _fork_servers and "PYTHONPATH" not in env:  # other modules would be imported
        return _fork_servers[-1].start(name, module, arguments, run_dir, env=env)
    return ChildProcess.start(name, argv, run_dir, env={"PYTHONPATH": str(ROOT), **env})
