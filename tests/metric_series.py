"""The series of our metrics in Prometheus."""

from prometheus_client import Counter, Gauge, Histogram

from libs.common.observability import metrics


def list_series() -> dict[str, set[str]]:
    """Return the names under which Prometheus has our metrics, with their labels."""
    found: dict[str, set[str]] = {}
    for metric in vars(metrics).values():
        match metric:
            case Counter():
                found[f"{metric._name}_total"] = set(metric._labelnames)
            case Gauge():
                found[metric._name] = set(metric._labelnames)
            case Histogram():
                labels = set(metric._labelnames)
                found |= {f"{metric._name}_{part}": labels for part in ("count", "sum")}
                found[f"{metric._name}_bucket"] = labels | {"le"}
            case metrics.OptionalGauge():
                found[metric._name] = set(metric._labelnames)
            case metrics.StatusCounter():
                found[metric._name] = {"status"}
    return found
