"""Images built without a registry: the base images from local files, ours from the Dockerfile."""

from __future__ import annotations

import hashlib
import shutil
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from libs.testbed.cache import get_or_make, run_command
from libs.testbed.containers.engine import BaseSystems, ContainerEngine

ROOT: Final = Path(__file__).parents[3]
BASE: Final = "talos-ccm-local/base"
BUILDER: Final = "talos-ccm-local/builder"
KUBE: Final = "talos-ccm-local/kube"
NATS: Final = "talos-ccm-local/nats"
_LOCKS: Final = (ROOT / "requirements-image.lock", ROOT / "requirements-build.lock")
_PIP: Final = "pip==26.3"
_TOOLS: Final = "talos-ccm-local/tools"
_BUILDER: Final = f"""\
FROM {_TOOLS}
COPY wheels /wheels
COPY pip /usr/local/lib/python3.11/dist-packages
ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels
"""


def build_compose_environment() -> Mapping[str, str]:
    """Return the variables for compose.yaml: these images, and no observability."""
    return {
        "ETCD_IMAGE": KUBE,
        "KUBE_APISERVER_IMAGE": KUBE,
        "KUBE_CONTROLLER_MANAGER_IMAGE": KUBE,
        "NATS_IMAGE": NATS,
        "OTLP_ENDPOINT": "",
        "COMPOSE_PROFILES": "",
    }


def build_wheels() -> Path:
    """Return the folder with the wheels that the Dockerfile installs, for the Python of the base image."""
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in _LOCKS) + _PIP.encode()).hexdigest()[:12]
    return get_or_make(f"wheels-{digest}", "wheels of the image", _download_wheels)


def build_images(engine: ContainerEngine, bases: BaseSystems, kube: Path, work: Path) -> None:
    """Build base, builder, control plane and NATS, then testbed and runtime from the Dockerfile."""
    engine.run_docker("import", bases.runtime, BASE)
    engine.run_docker("import", bases.builder, _TOOLS)
    _build_image(engine, work / "builder", _BUILDER, {"wheels": build_wheels(), "pip": _unpack_pip(work)})
    _build_image(
        engine, work / "kube", 'FROM scratch\nCOPY kube /kube\nENTRYPOINT ["/kube"]\n', {"kube": kube}
    )
    server = Path(sysconfig.get_path("scripts")) / "nats-server"
    _build_image(
        engine,
        work / "nats",
        "FROM scratch\nCOPY nats-server /usr/local/bin/nats-server\n",
        {"nats-server": server},
    )
    options = ("--network=none", f"--build-arg=BASE={BASE}", f"--build-arg=BUILDER={BUILDER}")
    for target, tag in (("testbed", "talos-ccm-testbed:dev"), ("runtime", "talos-ccm:dev")):
        engine.run_docker("build", "-q", *options, f"--target={target}", f"--tag={tag}", ROOT)


def get_image_size(engine: ContainerEngine, image: str) -> int:
    """Return the size of all layers, in bytes."""
    return int(engine.run_docker("image", "inspect", "--format={{.Size}}", image))


def _build_image(
    engine: ContainerEngine, context: Path, dockerfile: str, content: Mapping[str, Path]
) -> None:
    context.mkdir(parents=True)
    for name, source in content.items():
        if source.is_dir():
            shutil.copytree(source, context / name)
        else:
            shutil.copy2(source, context / name)
    (context / "Dockerfile").write_text(dockerfile)
    engine.run_docker("build", "-q", "--network=none", f"--tag=talos-ccm-local/{context.name}", context)


def _download_wheels(out: Path) -> None:
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
        run_command([*pip, *for_base, "--require-hashes", f"--requirement={lock}"])
    run_command([*pip, *for_base, "--only-binary=:all:", _PIP])


def _unpack_pip(work: Path) -> Path:
    out = work / "pip"
    with zipfile.ZipFile(next(build_wheels().glob("pip-*.whl"))) as wheel:
        wheel.extractall(out)
    return out
