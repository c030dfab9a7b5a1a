"""The labels of the chart's objects. Pure."""

from typing import Final

CHART: Final = "talos-cloud-controller-manager"  # the name label, unless nameOverride changes it
NAME: Final = "app.kubernetes.io/name"
INSTANCE: Final = "app.kubernetes.io/instance"  # the release
COMPONENT: Final = "app.kubernetes.io/component"  # the service of a pod
