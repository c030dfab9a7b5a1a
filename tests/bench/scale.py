"""The scenario `scale`: bursts of growing size."""

import msgspec

from libs.testbed.service_processes import PATIENT_LEASE_FLAGS
from tests.bench.figures import BenchRun, Figures
from tests.bench.measurement import Measurement
from tests.bench.node_joins import measure_joins_with_services
from tests.bench.scale_figures import compute_growth, select_scale_figures


async def measure_scale(m: Measurement) -> BenchRun:
    """A burst of each size, each time with restarted services."""
    figures: Figures = {}
    problems: list[str] = []
    for nodes in m.options.sizes:
        of_size = msgspec.structs.replace(m, name=f"{m.name}-{nodes}")
        found, failed = await measure_joins_with_services(of_size, nodes, own_flags=PATIENT_LEASE_FLAGS)
        figures |= select_scale_figures(found, nodes)
        problems += [f"{nodes} nodes: {problem}" for problem in failed]
    return m.make_run("scale", compute_growth(figures, m.options.sizes) | figures, problems)
