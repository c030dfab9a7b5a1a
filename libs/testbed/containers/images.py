"""The images that a registry would have, made of what this machine has; and ours, by the Dockerfile."""

from __future__ import annotations

import hashlib
import shutil
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from libs.testbed.containers.engine import Engine
from libs.testbed.containers.run import kept, run

ROOT: Final = Path(__file__).parents[3]
BASE: Final = "talos-ccm-local/base"
BUILDER: Final = "talos-ccm-local/builder"
KUBE: Final = "talos-ccm-local/kube"
NATS: Final = "talos-ccm-local/nats"
_LOCKS: Final = (ROOT / "requirements-image.lock", ROOT / "requirements-build.lock")
_PIP: Final = "pip==26.3"
_BUILDER: Final = f"""\
FROM {BASE}
COPY wheels /wheels
COPY pip /usr/local/lib/python3.11/dist-packages
ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels
"""


def for_compose() -> Mapping[str, str]:
    """What compose.yaml is told: these images, and no observability, of which there is none here."""
    return {
        "ETCD_IMAGE": KUBE,
        "KUBE_APISERVER_IMAGE": KUBE,
        "KUBE_CONTROLLER_MANAGER_IMAGE": KUBE,
        "NATS_IMAGE": NATS,
        "OTLP_ENDPOINT": "",
        "COMPOSE_PROFILES": "",
    }


def wheels() -> Path:
    """All that the Dockerfile installs, for the Python of the base."""
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in _LOCKS) + _PIP.encode()).hexdigest()[:12]
    return kept(f"wheels-{digest}", "what the image installs", _download)


def make(engine: Engine, base: Path, kube: Path, work: Path) -> None:
    """Base, builder, control plane, NATS; then runtime and testbed from the Dockerfile."""
    engine.docker("import", base, BASE)
    _build(engine, work / "builder", _BUILDER, {"wheels": wheels(), "pip": _pip(work)})
    _build(engine, work / "kube", 'FROM scratch\nCOPY kube /kube\nENTRYPOINT ["/kube"]\n', {"kube": kube})
    server = Path(sysconfig.get_path("scripts")) / "nats-server"
    _build(
        engine,
        work / "nats",
        "FROM scratch\nCOPY nats-server /usr/local/bin/nats-server\n",
        {"nats-server": server},
    )
    bases = ("--network=none", f"--build-arg=BASE={BASE}", f"--build-arg=BUILDER={BUILDER}")
    for target, tag in (("testbed", "talos-ccm-testbed:dev"), ("runtime", "talos-ccm:dev")):
        engine.docker("build", "-q", *bases, f"--target={target}", f"--tag={tag}", ROOT)


def size_bytes(engine: Engine, image: str) -> int:
    """All layers of it."""
    return int(engine.docker("image", "inspect", "--format={{.Size}}", image))


def _build(engine: Engine, context: Path, dockerfile: str, content: Mapping[str, Path]) -> None:
    context.mkdir(parents=True)
    for name, source in content.items():
        if source.is_dir():
            shutil.copytree(source, context / name)
        else:
            shutil.copy2(source, context / name)
    (context / "Dockerfile").write_text(dockerfile)
    engine.docker("build", "-q", "--network=none", f"--tag=talos-ccm-local/{context.name}", context)


def _download(out: Path) -> None:
    pip: list[str | Path] = [
        Path(sysconfig.get_path("scripts")) / "uvx",
        "--quiet",
        "--from",
        _PIP,
        "pip",
        "download",
        "--quiet",
    ]
    for_base = ["--no-deps", "--python-version=3.11", f"--dest={out}"]
    for lock in _LOCKS:
        run([*pip, *for_base, "--require-hashes", f"--requirement={lock}"])
    run([*pip, *for_base, "--only-binary=:all:", _PIP])


def _pip(work: Path) -> Path:
    out = work / "pip"
    with zipfile.ZipFile(next(wheels().glob("pip-*.whl"))) as wheel:
        wheel.extractall(out)
    return out
