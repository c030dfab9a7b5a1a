"""`make compose-local`: run tier 0 of deploy/compose with Debian packages, Go modules and wheels only."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from libs.testbed.cache import CommandFailed
from libs.testbed.containers import engine as engines
from libs.testbed.containers import images
from libs.testbed.containers.engine import ContainerEngine
from libs.testbed.control_plane.build import KUBE, BuildError, GoProgram, build_program

_FOLDER: Final = images.ROOT / "deploy" / "compose"
_VERSION: Final = "v2.40.3"
COMPOSE: Final = GoProgram(
    "docker-compose",
    _FOLDER / "docker-compose",
    f"-s -w -X github.com/docker/compose/v2/internal.Version={_VERSION}",
    "github.com/docker/compose/v2/cmd",
)


def main() -> None:
    """Start everything, wait until every node is usable, print the result; only the cache remains."""
    parser = argparse.ArgumentParser(prog="make compose-local", description=__doc__)
    parser.add_argument("--nodes", type=int, default=50, help="number of nodes (default: 50)")
    parser.add_argument(
        "--patience", type=int, default=240, help="longest wait for usable nodes, in seconds (default: 240)"
    )
    parser.add_argument("--stay", action="store_true", help="keep it running until Ctrl-C")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    try:
        engines.check_machine(os.geteuid(), os.environ.get("PATH", ""))
        _run(options.nodes, options.patience, stay=options.stay)
    except (CommandFailed, BuildError) as error:
        sys.exit(f"compose-local: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _exit_on_signal(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _run(nodes: int, patience: int, *, stay: bool) -> None:
    kube, compose = (asyncio.run(build_program(program)) for program in (KUBE, COMPOSE))
    engine_packages = engines.unpack_engine()
    bases = engines.build_base_systems(engine_packages)
    images.build_wheels()
    with tempfile.TemporaryDirectory(prefix="talos-ccm-compose-") as name:
        folder = Path(name)
        with engines.start_engine(engine_packages, compose, folder / "engine") as engine:
            with _report("images"):
                images.build_images(engine, bases, kube, folder / "images")
            print(
                "           image of the services: "
                f"{images.get_image_size(engine, 'talos-ccm:dev') / 1e6:.0f} MB"
            )
            with _start(engine, nodes, patience):
                _print_result(engine)
                if stay:
                    _wait_for_interrupt(engine)
    print("ended: no container, process, mount or file remains")


@contextlib.contextmanager
def _start(engine: ContainerEngine, nodes: int, patience: int) -> Iterator[None]:
    settings = {**images.build_compose_environment(), "NODES": str(nodes)}
    engine.env.update(settings)
    try:
        with _report(f"everything is healthy, {nodes} nodes are usable"):
            try:
                _compose(engine, "up", "--detach", "--no-build", "--wait", f"--wait-timeout={patience}")
            except CommandFailed:
                print(
                    _compose(engine, "ps", "--all"),
                    _compose(engine, "logs", "--tail=15", "--no-color"),
                    sep="\n",
                )
                raise
        yield
    finally:
        with _report("removed all containers"):
            _compose(engine, "down", "--volumes", "--timeout=5")


@contextlib.contextmanager
def _report(what: str) -> Iterator[None]:
    """Print at the end of the block what was done and how long it took."""
    begun = time.monotonic()
    yield
    print(f"{time.monotonic() - begun:7.1f} s  {what}", file=sys.stderr, flush=True)


def _compose(engine: ContainerEngine, *words: str) -> str:
    return engine.run_docker("compose", f"--project-directory={_FOLDER}", *words)


def _print_result(engine: ContainerEngine) -> None:
    print(_compose(engine, "ps", "--format=table {{.Service}}\t{{.Status}}"))
    print(_compose(engine, "logs", "--no-log-prefix", "rights", "nodes", "talos"))


def _wait_for_interrupt(engine: ContainerEngine) -> None:
    print(f"It runs until Ctrl-C:  DOCKER_HOST={engine.address} docker compose -p talos-ccm logs -f")
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


if __name__ == "__main__":
    main()
