"""Starts a process of the services: a new Python or a fork, patched if a harness asks for it."""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from libs.common.contract.services import CLOUD, SERVICE_TABLE
from libs.testbed.child_process import ChildProcess
from libs.testbed.fork_server import ForkServer
from libs.testbed.patched_process import PATCHES, PROCESS_NAME

ROOT: Final = Path(__file__).parents[2]
_PRELOADED: Final = (
    "libs.common.service.run_process",
    *(f"services.{spec.service}.service" for spec in SERVICE_TABLE),
    "services.bootstrap.run",
)
_fork_servers: list[ForkServer] = []  # the innermost block of fork_services comes last


@contextlib.contextmanager
def fork_services(run_dir: Path) -> Iterator[None]:
    """During the block, fork Python programs of this tree from a process that has imported all services.

    So each start costs half a second of CPU less. The resident memory of such a process is not its own.
    """
    with ForkServer.open(run_dir, *_PRELOADED) as server:
        _fork_servers.append(server)
        try:
            yield
        finally:
            _fork_servers.pop()


def get_module(service: str) -> str:
    """The module that `python -m` runs for a service, such as "cloud-prod", or for "all-in-one"."""
    if service.startswith(f"{CLOUD.service}-"):
        service = CLOUD.service
    return "services" if service == "all-in-one" else f"services.{service}"


def start_service(
    name: str, service: str, arguments: Sequence[str], run_dir: Path, env: Mapping[str, str]
) -> ChildProcess:
    """Start the process `name`, such as "ipam-2", of a service or "all-in-one"; it logs to `<name>.log`."""
    module = get_module(service)
    if PATCHES in env:
        module, arguments = "libs.testbed.patched_process", [module, *arguments]
    return start_program(name, module, arguments, run_dir, {**env, PROCESS_NAME: name})


def start_program(
    name: str, module: str, arguments: Sequence[str], run_dir: Path, env: Mapping[str, str]
) -> ChildProcess:
    """Start `python -m module arguments` of this tree, as a fork within `fork_services`.

    It logs to `<name>.log`. A PYTHONPATH in `env` must include this tree.
    """
    if not _fork_servers:
        return start_interpreter(name, module, arguments, run_dir, env)
    return _fork_servers[-1].start(name, module, arguments, run_dir, env={"PYTHONPATH": str(ROOT), **env})


def start_interpreter(
    name: str, module: str, arguments: Sequence[str], run_dir: Path, env: Mapping[str, str]
) -> ChildProcess:
    """Start `python -m module arguments` of this tree in a new interpreter; it logs to `<name>.log`."""
    argv = [sys.executable, "-m", module, *arguments]
    return ChildProcess.start(name, argv, run_dir, env={"PYTHONPATH": str(ROOT), **env})
