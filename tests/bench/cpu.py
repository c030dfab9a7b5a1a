"""CPU of all processes until the last node is usable; other load distorts it less than seconds. Pure."""

from collections.abc import Mapping
from typing import Final

from libs.testbed.service_processes import ProcessUsage
from tests.bench.figures import Figures, compute_ratio

GROUP: Final = "CPU until the last node: "
RATIO: Final = "CPU with pod CIDRs / without"
IN_LOOPS: Final = "CPU with pod CIDRs / without, in units of a fixed loop"
IN_KUBELETS: Final = "CPU with pod CIDRs / without, in units of the kubelets'"
UNTIL_QUIET: Final = "CPU with pod CIDRs / without, until our services are quiet"
LOOP: Final = f"{GROUP}a fixed loop ms"
# Nearly the same work in both bursts; with pod CIDRs the observer gets one more watch event per node.
_KUBELETS: Final = "kubelets"
APART: Final = (_KUBELETS, "machines", "bench")  # neither servers of the cluster nor our services


def compute_cpu_figures(
    before: Mapping[str, ProcessUsage], after: Mapping[str, ProcessUsage], loop_ms: float
) -> Figures:
    """CPU seconds of each process between the two readings, and the cost of the fixed loop."""
    spent = {
        f"{GROUP}{name} s": usage.cpu_seconds - before[name].cpu_seconds for name, usage in after.items()
    }
    return spent | {LOOP: loop_ms}


def compare_cpu(without: Figures, served: Figures) -> Figures:
    """The ratio of the CPU of servers and services in the two bursts."""
    cpu = compute_ratio(_sum_cpu(served), _sum_cpu(without))
    loop = compute_ratio(served[LOOP], without[LOOP])
    kubelets = compute_ratio(_get_process_cpu(served, _KUBELETS), _get_process_cpu(without, _KUBELETS))
    return {
        RATIO: cpu,
        IN_LOOPS: compute_ratio(cpu, loop),
        IN_KUBELETS: compute_ratio(cpu, kubelets),
        UNTIL_QUIET: compute_ratio(_sum_all_cpu(served), _sum_all_cpu(without)),
    }


def remove_group(figures: Figures, prefix: str) -> Figures:
    """The CPU figures, under names with the prefix instead of the group."""
    return {
        f"{prefix}CPU of {n.removeprefix(GROUP)}": v for n, v in figures.items() if n.startswith(GROUP)
    } | {f"{prefix}{n}": v for n, v in figures.items() if n.endswith(" CPU s")}


def _sum_cpu(figures: Figures) -> float:
    apart = {LOOP, *(_name(process) for process in APART)}
    return sum(value for name, value in figures.items() if name.startswith(GROUP) and name not in apart)


def _sum_all_cpu(figures: Figures) -> float:
    apart = {f"context: {process} CPU s" for process in APART}
    of_servers = (n for n in figures if n.startswith("context: ") and n.endswith(" CPU s") and n not in apart)
    return figures["ours: all CPU s"] + sum(figures[name] for name in of_servers)


def _get_process_cpu(figures: Figures, process: str) -> float:
    return figures[_name(process)]


def _name(process: str) -> str:
    return f"{GROUP}{process} s"
