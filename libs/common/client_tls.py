"""The TLS context of every client: the same checks on every version of Python (decision 34)."""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Python 3.13 adds VERIFY_X509_STRICT to its default contexts. That flag rejects authorities without key
# identifiers, such as those of older clusters. With the second flag, a chain may end at any certificate that
# the operator trusts, not only at a root, as for kubectl and talosctl.
_FLAGS: Final = ssl.VERIFY_X509_TRUSTED_FIRST | ssl.VERIFY_X509_PARTIAL_CHAIN
_AUTHORITIES_FILE: Final = "SSL_CERT_FILE"  # OpenSSL reads it whenever it loads default authorities


def make_client_context() -> ssl.SSLContext:
    """Return a context that verifies chain and name, with TLS 1.2 or newer.

    It trusts no authority yet: the caller loads some with `load_verify_locations` or `load_default_certs`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags = _FLAGS
    return context


@contextmanager
def without_system_authorities() -> Iterator[None]:
    """Let no TLS context load the system's authorities meanwhile. For imports, before other threads start."""
    before = os.environ.get(_AUTHORITIES_FILE)
    os.environ[_AUTHORITIES_FILE] = os.devnull
    try:
        yield
    finally:
        if before is None:
            del os.environ[_AUTHORITIES_FILE]
        else:
            os.environ[_AUTHORITIES_FILE] = before


@contextmanager
def as_path(text: bytes) -> Iterator[str]:
    """Yield a path of a PEM text for OpenSSL, which loads a pair only from files.

    The text does not reach the disk, which may be read-only.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem")
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
    else:  # macOS: readable only by this user, and deleted at once
        with tempfile.NamedTemporaryFile() as file:
            file.write(text)
            file.flush()
            yield file.name
