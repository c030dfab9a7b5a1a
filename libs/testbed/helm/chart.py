"""The chart, linted and rendered by a pinned helm that is built from source once."""

from __future__ import annotations

import asyncio
import functools
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from libs.testbed.control_plane.build import GoProgram, build_program

_VERSION: Final = "v3.21.4"
HELM: Final = GoProgram(
    "helm",
    Path(__file__).parent,
    f"-s -w -X helm.sh/helm/v3/internal/version.version={_VERSION}",
    "helm.sh/helm/v3/cmd/helm",
)
KUBERNETES: Final = "1.36.0"  # a helm built from its module would assume 1.20
CHART: Final = Path(__file__).parents[3] / "deploy" / "k8s" / "chart"
DASHBOARDS: Final = CHART / "files" / "observability" / "dashboards"
RELEASE: Final = "talos-cloud-controller-manager"
# No image is published, so the values must name one. Names below `.invalid` never resolve (RFC 6761).
PLACEHOLDER: Final = "your-registry.invalid/talos-cloud-controller-manager"
NAMESPACE: Final = "kube-system"
_NATS: Final = "nats"
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast
_WORKLOADS: Final = ("Deployment", "StatefulSet")
Manifest = dict[str, Any]


class HelmError(RuntimeError):
    """Helm failed; the message is its output."""


class ChartValues(msgspec.Struct, frozen=True):
    """The input of a rendering: files of values, and single values that override them."""

    files: tuple[Path, ...] = ()
    overrides: Mapping[str, Any] = msgspec.field(default_factory=dict)
    repository: str = PLACEHOLDER  # image.repository, unless `overrides` has it; "" = only the files have it
    release: str = RELEASE
    namespace: str = NAMESPACE
    kubernetes: str = KUBERNETES
    # group/version/kind, as a cluster lists them; () = rendered without a cluster
    api_versions: tuple[str, ...] = ()

    def build_arguments(self) -> list[str]:
        """Return helm's arguments."""
        files = [f"--values={path}" for path in self.files]
        given = {"image.repository": self.repository} if self.repository else {}
        overrides = [
            f"--set-json={key}={msgspec.json.encode(value).decode()}"
            for key, value in (given | dict(self.overrides)).items()
        ]
        served = [f"--api-versions={each}" for each in self.api_versions]
        return [
            *files,
            *overrides,
            f"--namespace={self.namespace}",
            f"--kube-version={self.kubernetes}",
            *served,
        ]


def lint_chart(values: ChartValues) -> str:
    """Return the output of `helm lint --strict`. Raises HelmError."""
    return _run_helm("lint", "--strict", str(CHART), *values.build_arguments())


def render_text(values: ChartValues, chart: Path = CHART) -> str:
    """Render all objects as one YAML text, in Helm's order of installation. Raises HelmError."""
    return _run_helm("template", values.release, str(chart), *values.build_arguments())


def render_manifests(values: ChartValues) -> list[Manifest]:
    """Render all objects. Raises HelmError."""
    return parse_manifests(render_text(values))


def parse_manifests(documents: str) -> list[Manifest]:
    """Return the objects in a YAML text of several documents."""
    return [document for document in yaml.load_all(documents, _LOADER) if document]


def select_kind(found: Sequence[Manifest], kind: str) -> dict[str, Manifest]:
    """Return the objects of that kind by name; names must be unique."""
    chosen = [manifest for manifest in found if manifest["kind"] == kind]
    named = {manifest["metadata"]["name"]: manifest for manifest in chosen}
    assert len(named) == len(chosen), f"two objects of kind {kind} have one name"
    return named


def select_service_deployments(found: Sequence[Manifest]) -> dict[str, Manifest]:
    """Return the Deployments of our services by name."""
    deployments = select_kind(found, "Deployment")
    return {name: each for name, each in deployments.items() if _get_component(each) != _NATS}


def find_nats_workload(found: Sequence[Manifest]) -> Manifest | None:
    """Return the workload of the NATS servers: a Deployment of one, or a StatefulSet of several."""
    workloads = (each for each in found if each["kind"] in _WORKLOADS)
    return next((each for each in workloads if _get_component(each) == _NATS), None)


def _get_component(manifest: Manifest) -> str | None:
    name: str | None = manifest["metadata"]["labels"].get("app.kubernetes.io/component")
    return name


@functools.cache
def _build_helm() -> Path:
    return asyncio.run(build_program(HELM))


def _run_helm(*arguments: str) -> str:
    run = subprocess.run([_build_helm(), *arguments], capture_output=True, text=True, check=False)
    if run.returncode:
        raise HelmError(run.stdout + run.stderr)
    return run.stdout
