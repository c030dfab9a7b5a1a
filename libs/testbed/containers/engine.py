"""Debian's docker engine: unpacked into the cache, and run with all its files in one folder; base systems."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from libs.testbed.cache import CommandFailed, get_or_make, remove, run_command

SUITE: Final = "bookworm"  # has the Python 3.11 of the Dockerfile's base image
_TOOLS: Final = ("apt-get", "dpkg-deb", "tar", "umount")
_ENGINE: Final = ("docker.io", "debootstrap", "iptables")
_IN_BASE: Final = "python3.11,python3-minimal,ca-certificates"
_IN_BUILDER: Final = "binutils"  # has strip
# Not needed in a container.
_EXCLUDED_PATHS: Final = (
    "./var/cache/apt/*",
    "./var/lib/apt/lists/*",
    "./usr/share/doc/*",
    "./usr/share/man/*",
    "./usr/share/locale/*",
)
_RUNTIME: Final = "runtime.tar"
_BUILDER: Final = "builder.tar"


class BaseSystems(NamedTuple):
    """Two tars of one system: what the image runs on, and the same with what builds it."""

    runtime: Path
    builder: Path


def check_machine(user_id: int, path: str) -> None:
    """Raise CommandFailed unless that user, with that PATH, can run an engine on this machine."""
    lacks = [tool for tool in _TOOLS if shutil.which(tool, path=path) is None]
    if lacks:
        raise CommandFailed(f"compose-local needs a Debian machine: this one lacks {', '.join(lacks)}")
    if user_id != 0:
        raise CommandFailed(
            "compose-local starts its own engine, which needs root: sudo make compose-local\n"
            "With an existing engine: make compose-up"
        )


def unpack_engine() -> Path:
    """Return the folder with usr/bin/docker, usr/sbin/dockerd and the packages that they require."""
    system = hashlib.sha256(Path("/etc/os-release").read_bytes()).hexdigest()[:12]
    return get_or_make(f"engine-{system}", "packages of the engine", _extract_engine)


def build_environment(engine: Path) -> Mapping[str, str]:
    """Return the environment in which the engine's programs find each other."""
    libraries = next((engine / "usr/lib").glob("*-linux-gnu"), engine / "usr/lib")
    return {
        **os.environ,
        "PATH": f"{engine}/usr/sbin:{engine}/usr/bin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(libraries),
        "XTABLES_LIBDIR": str(libraries / "xtables") if (libraries / "xtables").exists() else "",
    }


def build_base_systems(engine: Path) -> BaseSystems:
    """Return a minimal Debian that has Python, with and without the tools of a builder."""
    folder = get_or_make(
        f"base-{SUITE}", f"Debian {SUITE} with Python", lambda out: _make_base_systems(engine, out)
    )
    return BaseSystems(runtime=folder / _RUNTIME, builder=folder / _BUILDER)


def _extract_engine(out: Path) -> None:
    packages = out.with_name("packages")
    remove(packages)
    (packages / "partial").mkdir(parents=True)
    download = ["apt-get", "install", "-qq", "--no-install-recommends", "--download-only", "--reinstall"]
    where = ["-o", f"Dir::Cache::archives={packages}", "-o", "Debug::NoLocking=1"]
    try:
        run_command([*download, *where, *_ENGINE])
    except CommandFailed:  # the package lists are missing or old
        run_command(["apt-get", "update", "-qq"])
        run_command([*download, *where, *_ENGINE])
    for package in sorted(packages.glob("*.deb")):
        run_command(["dpkg-deb", "-x", package, out])
    for name in ("iptables", "ip6tables"):  # the package's installation would create these
        link = out / "usr/sbin" / name
        if not link.exists():
            link.symlink_to("xtables-nft-multi")
    remove(packages)


def _make_base_systems(engine: Path, out: Path) -> None:
    root = out.with_name("root")
    remove(root)
    scripts = {**build_environment(engine), "DEBOOTSTRAP_DIR": str(engine / "usr/share/debootstrap")}
    del scripts["LD_LIBRARY_PATH"]  # debootstrap runs programs of the new system
    run_command(
        [engine / "usr/sbin/debootstrap", "--variant=minbase", f"--include={_IN_BASE}", SUITE, root],
        env=scripts,
    )
    out.mkdir()
    _pack(root, out / _RUNTIME)
    run_command(["chroot", root, "apt-get", "-qq", "update"], env=scripts)
    run_command(
        ["chroot", root, "apt-get", "-qq", "--no-install-recommends", "install", _IN_BUILDER], env=scripts
    )
    _pack(root, out / _BUILDER)
    remove(root)


def _pack(root: Path, out: Path) -> None:
    left_out = [f"--exclude={path}" for path in _EXCLUDED_PATHS]
    run_command(["tar", "-C", root, "--numeric-owner", *left_out, "-cf", out, "."])


# ---- a running engine


_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1
# No change to the host's firewall and routes: containers reach each other, and nothing outside.
_NO_HOST_NETWORK_FLAGS: Final = ("--iptables=false", "--ip-forward=false", "--bridge=none")


class ContainerEngine:
    """A running dockerd."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.address = f"unix://{folder}/docker.sock"
        self.env = {
            **env,
            "DOCKER_HOST": self.address,
            "DOCKER_CONFIG": str(folder / "config"),
            "DOCKER_BUILDKIT": "1",
        }

    def run_docker(self, *words: str | Path) -> str:
        """Run a docker command and return its stdout. Raises CommandFailed."""
        return run_command(["docker", *words], env=self.env)

    def is_ready(self) -> bool:
        """Whether dockerd answers."""
        try:
            self.run_docker("version")
        except CommandFailed:
            return False
        return True


@contextlib.contextmanager
def start_engine(packages: Path, compose: Path, folder: Path) -> Iterator[ContainerEngine]:
    """Start dockerd in `folder` with the compose plugin; at the end it stops and removes its mounts."""
    plugins = folder / "config" / "cli-plugins"
    plugins.mkdir(parents=True)
    (plugins / "docker-compose").symlink_to(compose)
    engine = ContainerEngine(folder, build_environment(packages))
    log = folder / "dockerd.log"
    with log.open("wb") as output:
        # Its own session: Ctrl-C reaches only this process, which stops the containers first.
        process = subprocess.Popen(
            _build_command(folder, engine.address),
            env=engine.env,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        _wait_until_ready(engine, process, log)
        yield engine
    finally:
        _stop(process, folder)


def _build_command(folder: Path, address: str) -> Sequence[str]:
    places = (f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/dockerd.pid")
    return ("dockerd", *places, f"--host={address}", *_NO_HOST_NETWORK_FLAGS)


def _wait_until_ready(engine: ContainerEngine, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not engine.is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise CommandFailed(f"dockerd does not answer; its last log lines:\n{last}")
        time.sleep(_POLL_SECONDS)


def _stop(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for line in Path("/proc/self/mounts").read_text().splitlines()[::-1]:
        if (mounted := line.split()[1]).startswith(f"{folder}/"):
            run_command(["umount", mounted])
