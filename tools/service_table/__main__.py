"""`python -m tools.service_table`: writes the files that follow the service table again."""

from collections.abc import Iterator
from pathlib import Path

from tools.service_table.chart import (
    render_memory_file,
    render_permissions_file,
    render_services_file,
    render_values_file,
    render_values_schema,
)
from tools.service_table.compose import render_compose_file, render_dockerfile, render_prometheus_file
from tools.service_table.services_page import render_readme, render_services_page

ROOT = Path(__file__).parents[2]


def render_files() -> Iterator[tuple[Path, str]]:
    """Yield each file and the content that it must have."""
    for name, render in (
        ("deploy/k8s/chart/values.yaml", render_values_file),
        ("deploy/k8s/chart/values.schema.json", render_values_schema),
        ("deploy/compose/compose.yaml", render_compose_file),
        ("deploy/compose/prometheus.yaml", render_prometheus_file),
        ("Dockerfile", render_dockerfile),
        ("README.md", render_readme),
    ):
        yield ROOT / name, render((ROOT / name).read_text())
    yield ROOT / "deploy/k8s/chart/files/rights.yaml", render_permissions_file()
    yield ROOT / "deploy/k8s/chart/files/memory.yaml", render_memory_file()
    yield ROOT / "deploy/k8s/chart/files/services.yaml", render_services_file()
    yield ROOT / "docs/services.md", render_services_page()


if __name__ == "__main__":
    for path, content in render_files():
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
            print(f"wrote {path.relative_to(ROOT)}")
