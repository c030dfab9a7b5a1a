"""Builds the TLS context for an API server from files or inline data."""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from libs.common.client_tls import make_client_context
from libs.common.kube.kube_config import CredentialSource, KubeConfig, KubeConfigError


def tls_context(config: KubeConfig) -> ssl.SSLContext | None:
    """Return the TLS context for the server, None for plain HTTP. Raises KubeConfigError with the field."""
    if config.server.startswith("http://"):
        return None
    authority = config.certificate_authority
    trusted = authority.read() if authority else None
    if authority and not trusted:  # Python would trust the system's authorities instead
        raise KubeConfigError(f"{authority.field} is empty")
    context = make_client_context()
    try:
        if trusted:
            context.load_verify_locations(cadata=trusted)
        else:
            context.load_default_certs()
    except (ssl.SSLError, ValueError) as error:
        field = authority.field if authority else config.source
        raise KubeConfigError(f"{field}: no usable CA certificate: {error}") from error
    if config.insecure_skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.client_certificate and config.client_key:
        _load_pair(context, config.client_certificate, config.client_key)
    return context


def _load_pair(context: ssl.SSLContext, certificate: CredentialSource, key: CredentialSource) -> None:
    # The ssl module loads a pair only from paths; a key from inline data must not reach the disk.
    with _as_path(certificate.read()) as certificate_path, _as_path(key.read()) as key_path:
        try:
            context.load_cert_chain(certificate_path, key_path, password=lambda: "")
        except (ssl.SSLError, OSError) as error:
            raise KubeConfigError(
                f"{certificate.field} and {key.field}: not a usable pair: {error}"
            ) from error


@contextmanager
def _as_path(text: str) -> Iterator[str]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("kube-credentials")
        try:
            os.write(descriptor, text.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:  # macOS: readable only by this user, and deleted at once
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            yield file.name
