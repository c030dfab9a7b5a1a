"""The servers of NATS, and the files that prove the identity of this client."""

import os
import ssl
from pathlib import Path

import msgspec

from libs.common.bus.protocol import BusError
from libs.common.client_tls import make_client_context


class NatsAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Servers and identity; files are read again for each connection, so that rotations take effect."""

    servers: tuple[str, ...]
    service: str
    nkey_seed_file: Path | None = None
    tls_ca_file: Path | None = None

    def __str__(self) -> str:
        return f"NATS at {', '.join(map(without_password, self.servers))}"

    def requires_tls(self, server: str) -> bool:
        """Whether connections to that server require TLS: because of a CA file or its scheme."""
        return self.tls_ca_file is not None or server.startswith("tls://")

    def read_seed(self) -> str | None:
        """Return the nkey seed, None without a key. Raises BusError that names the file."""
        path = self.nkey_seed_file
        if path is None:
            return None
        import nkeys  # type: ignore[import-untyped]  # noqa: PLC0415 - 2 MB, only for a connection with a key

        try:
            seed = path.read_text().strip()
            nkeys.from_seed(bytearray(seed.encode())).wipe()
        except (OSError, ValueError, nkeys.NkeysError) as error:
            raise BusError(f"{path}: {_file_fault(error)}") from error
        return seed

    def tls_context(self) -> ssl.SSLContext | None:
        """Return a context that trusts only the CA file, None without one. Raises BusError with the file."""
        path = self.tls_ca_file
        if path is None:
            return None
        context = make_client_context()
        try:
            context.load_verify_locations(cafile=path)
        except (OSError, ssl.SSLError) as error:
            raise BusError(f"{path}: {_file_fault(error)}") from error
        return context


def generate_seed() -> bytes:
    """Return a new random seed, which proves an identity to NATS; the server has its public key."""
    import nkeys  # noqa: PLC0415 - as above

    seed: bytes = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    return seed


def public_key_of(seed: bytes) -> str:
    """Return the public key of a user's seed. Raises ValueError if it is not one."""
    import nkeys  # noqa: PLC0415 - as above

    try:
        pair = nkeys.from_seed(bytearray(seed.strip()))
        public = str(pair.public_key.decode())
        pair.wipe()
    except (ValueError, nkeys.NkeysError) as error:
        raise ValueError(f"not an NKey seed: {str(error) or type(error).__name__}") from error
    if not public.startswith("U"):
        raise ValueError("not a user's seed: its public key does not begin with U")
    return public


def without_password(server: str) -> str:
    """Return a server's address without user and password, for logs and /readyz."""
    scheme, separator, rest = server.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _file_fault(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno and error.errno > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno).lower()
    return f"not usable: {str(error) or type(error).__name__}"
