"""The settings of a running service, by the flags of its pods. Pure."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from cli.cluster.installation import list_services
from cli.cluster.kube_objects import Container
from cli.cluster.pods import Pod
from cli.cluster.unavailable import Unavailable, list_known
from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.services import ServiceSpec
from libs.common.settings.read_settings import list_options, validate_settings

Settings = TypeVar("Settings", bound=msgspec.Struct)


def list_containers(pods: tuple[Pod, ...] | Unavailable, service: ServiceSpec) -> Iterator[Container]:
    """Yield the containers that run the service, of the known pods that have not ended."""
    for pod in list_known(pods):
        for container in pod.spec.containers:
            if not pod.is_terminated and service in list_services(container):
                yield container


def find_container(pods: tuple[Pod, ...] | Unavailable, service: ServiceSpec) -> Container | None:
    """Return a container that runs the service; None if no known pod has one."""
    return next(list_containers(pods, service), None)


def read_service_settings(
    kind: type[Settings], given: Mapping[str, str], container: Container | None = None
) -> Settings:
    """Return the settings with the given values of flags, else those of the container, else the defaults.

    "" in `given` = not given. Raises ValueError with the mistakes in given values.
    """
    arguments = [
        f"--{name}={value}"
        for name in (option.flag.name for option in list_options(kind))
        for value in ([given[name]] if given.get(name) else container.flag_values(name) if container else ())
    ]
    read, mistakes = validate_settings([kind], arguments, {}, config=CloudConfig())
    if mistakes and container:  # it cannot start
        return read_service_settings(kind, given)
    if mistakes:
        raise ValueError("\n".join(mistakes))
    return read.get(kind)
