"""Linux namespaces for programs of the testbed, and a file system of limited size in one of them."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, Self

from libs.testbed.child_process import ChildProcess, make_directory, wait_until

# A user namespace makes a user root in it, which other namespaces require.
_AS_ROOT = ("unshare",)
_AS_USER = ("unshare", "--user", "--map-root-user")


class NamespaceError(OSError):
    """The user cannot create a namespace here."""


async def find_namespace(kind: str, purpose: str) -> Sequence[str]:
    """Return the command that runs a program in a namespace of its own; `kind` is "net" or "mount".

    Raises NamespaceError, which names the purpose.
    """
    reasons = []
    for command in ((*_AS_ROOT, f"--{kind}"), (*_AS_USER, f"--{kind}")):
        try:
            attempt = await asyncio.create_subprocess_exec(
                *command, "true", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
            )
        except FileNotFoundError:
            raise NamespaceError(f"{purpose} needs unshare (util-linux, on Linux)") from None
        _, error = await attempt.communicate()
        if attempt.returncode == 0:
            return command
        reasons.append(error.decode().strip())
    raise NamespaceError(
        f"{purpose} needs a {kind} namespace: run it as root, or allow users to create user "
        f"namespaces ({'; '.join(reasons)})"
    )


_MOUNT: Final = 'mount -t tmpfs -o size="$1",mode=700 tmpfs "$2" && echo mounted && exec sleep infinity'
_CHUNK: Final = bytes(2**16)


class SmallVolume:
    """A tmpfs in a mount namespace, so that it ends with the process that keeps the namespace."""

    def __init__(self, path: Path) -> None:
        self.path = path  # leads into the namespace, for every process of this user
        self._filler = path / "filler"

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, run_dir: Path, size_bytes: int) -> AsyncIterator[Self]:
        """Mount it during the block. Raises NamespaceError."""
        namespace = await find_namespace("mount", "a volume of limited size")
        mount_point = make_directory(run_dir / "volume").resolve()
        argv = [*namespace, "sh", "-c", _MOUNT, "sh", str(size_bytes), str(mount_point)]
        child = ChildProcess.start("volume", argv, run_dir)

        async def is_mounted() -> bool:
            return "mounted" in child.tail()

        try:
            await wait_until(is_mounted, child, what="mounted")
            yield cls(Path(f"/proc/{child.pid}/root") / mount_point.relative_to("/"))
        finally:
            await child.kill()

    def fill(self) -> None:
        """Write a file until the volume has no room."""
        with self._filler.open("ab", buffering=0) as file:
            try:
                while file.write(_CHUNK):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def make_room(self) -> None:
        """Remove the file of `fill`, if there is one."""
        self._filler.unlink(missing_ok=True)
