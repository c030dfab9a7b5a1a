"""NKeys: who we are to NATS. A seed proves it, the public key stands in the server's configuration."""

import os

import nkeys  # type: ignore[import-untyped]


def generate_seed() -> bytes:
    """A seed that nobody has."""
    seed: bytes = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    return seed


def public_key_of(seed: bytes) -> str:
    """The public key of a user's seed. Raises ValueError if it is none."""
    try:
        pair = nkeys.from_seed(bytearray(seed.strip()))
        public = str(pair.public_key.decode())
        pair.wipe()
    except (ValueError, nkeys.NkeysError) as error:
        raise ValueError(f"not an NKey seed: {str(error) or type(error).__name__}") from error
    if not public.startswith("U"):
        raise ValueError("not the seed of a user: its public key does not begin with U")
    return public
