"""NKeys: the seed proves an identity to NATS; the server's configuration has its public key."""

import os

import nkeys  # type: ignore[import-untyped]


def generate_seed() -> bytes:
    """Return a new random seed."""
    seed: bytes = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    return seed


def public_key_of(seed: bytes) -> str:
    """Return the public key of a user's seed. Raises ValueError if it is not one."""
    try:
        pair = nkeys.from_seed(bytearray(seed.strip()))
        public = str(pair.public_key.decode())
        pair.wipe()
    except (ValueError, nkeys.NkeysError) as error:
        raise ValueError(f"not an NKey seed: {str(error) or type(error).__name__}") from error
    if not public.startswith("U"):
        raise ValueError("not a user's seed: its public key does not begin with U")
    return public
