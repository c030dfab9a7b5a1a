"""Linux namespaces for programs of the testbed: as root, or in a user namespace."""

import asyncio
from collections.abc import Sequence

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
