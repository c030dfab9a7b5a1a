"""A process of the services keeps no authorities of the system that no client uses."""

import os
import subprocess
import sys
from pathlib import Path

from libs.testbed.pki import CertificateAuthority

_COUNT = """
import gc, ssl
import services.__main__, libs.common.kube.api
made = [each for each in gc.get_objects() if isinstance(each, ssl.SSLContext)]
after = ssl.create_default_context()
print(bool(made), *(each.cert_store_stats()["x509"] for each in [*made, after]))
"""


def test_contexts_that_a_library_makes_at_its_import_load_none_and_later_ones_do(tmp_path: Path):
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(CertificateAuthority.make(common_name="system").pem)
    ran = subprocess.run(
        [sys.executable, "-c", _COUNT],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "SSL_CERT_FILE": str(authorities), "SSL_CERT_DIR": str(tmp_path)},
    )
    assert ran.stdout.split() == ["True", "0", "0", "1"]
