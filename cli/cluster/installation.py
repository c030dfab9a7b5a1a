"""The installation as found in the workloads: services, ServiceAccounts, configuration, settings. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from cli.cluster.cloud_accounts import list_container_accounts
from cli.cluster.kube_objects import CHART, INSTANCE, Container, Workload
from cli.cluster.pods import Pod
from cli.cluster.unavailable import Unavailable, list_known
from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.controllers import is_service_selected
from libs.common.contract.services import (
    CLOUD,
    LEASE_NAMESPACE,
    NAMED_SERVICES,
    SERVICE_TABLE,
    WATCHER,
    WATCHER_LEASE,
    ElectionLease,
    ServiceSpec,
)
from libs.common.settings.read_settings import list_options, validate_settings

PLACEHOLDER: Final = "your-registry.invalid/"  # the registry in the rendered files
TALOS_VOLUME: Final = "talos-secrets"
_SERVICE: Final = re.compile(r"services(?:\.(?P<name>\w+))?")


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that runs one service, or all of them."""

    workload: Workload
    container: Container
    services: tuple[ServiceSpec, ...]

    @property
    def service_account(self) -> str:
        """Return the name of its ServiceAccount."""
        return self.workload.pod.service_account_name or "default"


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """One release of the chart, or of a rendered file."""

    namespace: str
    release: str
    processes: tuple[Process, ...]
    nats: Workload | None = None

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """Return all workloads that run pods."""
        return (*(process.workload for process in self.processes), *((self.nats,) if self.nats else ()))

    @property
    def services(self) -> tuple[str, ...]:
        """Return the names of the running services, in the order of the flow."""
        running = {wiring.service for process in self.processes for wiring in process.services}
        return tuple(sorted(running, key=get_flow_order))

    @property
    def cloud_accounts(self) -> tuple[str, ...]:
        """Return the names of the cloud accounts."""
        prefix = f"{CLOUD.service}-"
        return tuple(name.removeprefix(prefix) for name in self.services if name.startswith(prefix))

    def runs_service(self, service: str) -> bool:
        """Whether that service is part of the installation."""
        return service in self.services

    def find_process(self, service: str) -> Process | None:
        """Return the process that runs the service; None if there is none."""
        return next((p for p in self.processes if any(w.service == service for w in p.services)), None)

    @property
    def is_all_in_one(self) -> bool:
        """Whether one process runs all services, without NATS."""
        return any(WATCHER in process.services and len(process.services) > 1 for process in self.processes)

    @property
    def prefix(self) -> str:
        """Return the common prefix of its object names: the full name of the chart."""
        for process in self.processes:
            name = process.workload.name
            if len(process.services) == 1:
                return name.removesuffix(f"-{process.services[0].service}")
            return name
        return ""

    @property
    def is_helm_release(self) -> bool:
        """Whether Helm installed it, rather than `kubectl apply` of a rendered file."""
        return any("meta.helm.sh/release-name" in w.metadata.annotations for w in self.workloads)

    @property
    def reapply_command(self) -> str:
        """Return the command that restores missing objects."""
        if self.is_helm_release:
            upgrade = f"helm upgrade --namespace {self.namespace} --reset-then-reuse-values {self.release}"
            return f"{upgrade} deploy/k8s/chart"
        file = f"deploy/k8s/manifests/cloud-controller-manager{self._profile}.yml"
        image = self.processes[0].container.image if self.processes else ""
        if not image or image.startswith(PLACEHOLDER):
            return f"kubectl apply --server-side --filename {file}"
        edit = f"sed 's|{PLACEHOLDER}{CHART}:[^\"]*|{image}|' {file}"
        return f"{edit} | kubectl apply --server-side --filename -"

    @property
    def _profile(self) -> str:
        """Return the suffix of the rendered file for this installation."""
        if self.is_all_in_one:
            return "-all-in-one" if self.runs_service("ipam") else "-daemonset"
        if not self.talos_account:
            return "-csr-only"
        return "-ha" if self.nats is not None and self.nats.desired_pods > 1 else ""

    @property
    def kubectl(self) -> str:
        """Return kubectl with the namespace of the installation."""
        return f"kubectl --namespace {self.namespace}"

    @property
    def lease(self) -> tuple[str, str]:
        """Return namespace and name of the watcher Lease."""
        process = self.find_process(WATCHER.service)
        return get_lease_name(process.container if process else Container(name=""), WATCHER_LEASE)

    @property
    def config_file(self) -> tuple[str, str]:
        """Return ConfigMap and key of the --cloud-config file; "" for both without one."""
        for process in self.processes:
            key = process.container.last_flag_value("cloud-config").rpartition("/")[2]
            maps = [v.config_map.name for v in process.workload.pod.volumes if v.config_map is not None]
            names = [name for name in maps if not name.endswith("-nats-ca")]
            if key and names:
                return names[0], key
        return "", ""

    @property
    def talos_account(self) -> str:
        """Return the ServiceAccount of talos.dev whose Secret is mounted; "" without one."""
        process = self.find_process("metadata")
        volumes = process.workload.pod.volumes if process else ()
        return next(
            (v.secret.secret_name for v in volumes if v.secret is not None and v.name == TALOS_VOLUME), ""
        )


def get_lease_name(container: Container, lease: ElectionLease) -> tuple[str, str]:
    """Return namespace and name of that Lease, by the flags of the container."""
    namespace = container.last_flag_value("leader-elect-resource-namespace", LEASE_NAMESPACE)
    return namespace, container.last_flag_value(lease.flag, lease.name)


def find_installations(workloads: Iterable[Workload]) -> tuple[Installation, ...]:
    """Return all installations, by the commands of their containers: names and labels are arbitrary.

    Processes of cloud accounts alone are none: accounts may run apart from the installation.
    """
    processes: dict[tuple[str, str], list[Process]] = {}
    of_nats: dict[tuple[str, str], Workload] = {}
    for workload in workloads:
        place = (workload.namespace, workload.metadata.labels.get(INSTANCE, ""))
        process = _parse_process(workload)
        if process is not None:
            processes.setdefault(place, []).append(process)
        elif _is_nats(workload):
            of_nats[place] = workload
    return tuple(
        Installation(
            namespace=namespace,
            release=release,
            processes=tuple(sorted(found, key=lambda each: get_flow_order(each.services[0].service))),
            nats=of_nats.get((namespace, release)),
        )
        for (namespace, release), found in sorted(processes.items())
        if any(process.services[0] in NAMED_SERVICES for process in found)
    )


def _parse_process(workload: Workload) -> Process | None:
    for container in workload.pod.containers:
        if services := tuple(list_services(container)):
            return Process(workload=workload, container=container, services=services)
    return None


def list_services(container: Container) -> Iterator[ServiceSpec]:
    """Yield the services of the container, by its command; of all services those that its flags select."""
    module = next(filter(None, map(_SERVICE.fullmatch, container.command)), None)
    if module is None:
        return
    name = module["name"]
    for spec in NAMED_SERVICES:
        if name == spec.service or (
            name is None
            and is_service_selected(
                container.controllers, spec.controller, is_switched_on=container.is_switched_on
            )
        ):
            yield spec
    yield from (account.spec for account in list_container_accounts("", container))


def _is_nats(workload: Workload) -> bool:
    pod = workload.pod
    words = [word for each in (*pod.init_containers, *pod.containers) for word in each.command]
    return "services.bootstrap" in words


def get_flow_order(service: str) -> tuple[int, str]:
    """Return a key that sorts names of services in the order of the flow; unknown ones come last."""
    found = (
        at
        for at, spec in enumerate(SERVICE_TABLE)
        if service == spec.service or (spec is CLOUD and service.startswith(f"{CLOUD.service}-"))
    )
    return next(found, len(SERVICE_TABLE)), service


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
