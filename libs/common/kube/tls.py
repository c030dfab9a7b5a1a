"""The TLS context for an API server, from whatever form its certificates and keys came in."""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from libs.common.kube.kube_config import CredentialSource, KubeConfig, KubeConfigError


def tls_context(config: KubeConfig) -> ssl.SSLContext | None:
    """The TLS context for this server, None for plain HTTP. Raises KubeConfigError naming the bad field."""
    if config.server.startswith("http://"):
        return None
    authority = config.certificate_authority
    trusted = authority.read() if authority else None
    if authority and not trusted:  # Python would take that for "all that the system trusts"
        raise KubeConfigError(f"{authority.field}: is empty")
    try:
        context = ssl.create_default_context(cadata=trusted)
    except (ssl.SSLError, ValueError) as error:
        field = authority.field if authority else config.source
        raise KubeConfigError(f"{field}: holds no usable CA certificate: {error}") from error
    # Cluster authorities are often made without the extensions that Python 3.13 began to insist on.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if config.insecure_skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.client_certificate and config.client_key:
        _load_pair(context, config.client_certificate, config.client_key)
    return context


def _load_pair(context: ssl.SSLContext, certificate: CredentialSource, key: CredentialSource) -> None:
    # The ssl module loads a pair from paths only; a key that came as data does not touch the disk.
    with _as_path(certificate.read()) as certificate_path, _as_path(key.read()) as key_path:
        try:
            context.load_cert_chain(certificate_path, key_path, password=lambda: "")
        except (ssl.SSLError, OSError) as error:
            raise KubeConfigError(
                f"{certificate.field} and {key.field}: are no usable pair: {error}"
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
    else:  # macOS: readable by us alone, and gone at once
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            yield file.name
