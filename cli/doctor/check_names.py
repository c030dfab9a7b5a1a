"""The names of the checks, in the order of importance. Pure."""

from typing import Final

CHECK_NAMES: Final = (
    "services",
    "config",
    "rights",
    "talos-credential",
    "talos",
    "nats",
    "kubelets",
    "serving-certificates",
    "controllers",
    "pod-cidrs",
    "approvers",
    "clock",
    "versions",
    "pod-security",
)
