"""The parts of deploy/compose and the Dockerfile that name the services."""

import json
from collections.abc import Iterable, Iterator
from typing import Final

from libs.common.contract.services import (
    CONSOLE,
    CONTROLLER_SERVICES,
    CSR,
    IPAM,
    METADATA,
    NAMED_SERVICES,
    SERVICES,
    WATCHER,
    ServiceSpec,
)
from tools.generated_part import replace_part

_PORT: Final = WATCHER.port  # each container has an address of its own
_SERVICE_NETWORKS: Final = "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112"
# The flags that the cluster of deploy/compose needs; a service without an entry needs none.
_FLAGS: Final = {
    CSR.service: (_SERVICE_NETWORKS,),
    IPAM.service: ("--cluster-cidr=10.244.0.0/16,fd00:10:244::/56", _SERVICE_NETWORKS),
}
# The console listens on the loopback only; this container publishes its port.
_NETWORK_OF: Final = {CONSOLE.service: "console-port"}
_NAMES: Final = tuple(spec.service for spec in NAMED_SERVICES)
_WITH_RIGHTS: Final = tuple(spec.service for spec in SERVICES)


def render_compose_file(text: str) -> str:
    """Return deploy/compose/compose.yaml with a container, a volume and credentials for each service."""
    text = replace_part(
        text, "command of credentials", _render_command("libs.testbed.compose.credentials", _NAMES)
    )
    text = replace_part(
        text, "volumes of credentials", "".join(f"      - {name}:/cluster/{name}\n" for name in _NAMES)
    )
    text = replace_part(
        text, "command of rights", _render_command("libs.testbed.compose.rights", _WITH_RIGHTS)
    )
    text = replace_part(text, "services", "\n".join(_render_container(spec) for spec in NAMED_SERVICES))
    return replace_part(text, "volumes of services", "".join(f"  {name}:\n" for name in _NAMES))


def render_prometheus_file(text: str) -> str:
    """Return deploy/compose/prometheus.yaml with the address of each service."""
    targets = ", ".join(f"{name}:{_PORT}" for name in _NAMES)
    return replace_part(text, "targets", f"      - targets: [{targets}]\n")


def render_dockerfile(text: str) -> str:
    """Return the Dockerfile with a folder for the credentials of each service."""
    folders = ["talos", "nodes", *_NAMES]
    return replace_part(
        text,
        "folders of credentials",
        "RUN install -d -o 10258 -g 10258 -m 0700"
        " /cluster /cluster/keys /cluster/nats /cluster/control-plane \\\n"
        f"    {' '.join(f'/cluster/{name}' for name in folders)}\n",
    )


def _render_command(module: str, names: Iterable[str]) -> str:
    return f"    command: [{', '.join(('python', '-m', module, *names))}]\n"


def _render_container(spec: ServiceSpec) -> str:
    network = (
        f"    network_mode: service:{_NETWORK_OF[spec.service]}\n" if spec.service in _NETWORK_OF else ""
    )
    build = "    build: {context: ../.., target: runtime}\n" if spec is SERVICES[0] else ""
    command = "".join(f"      - {word}\n" for word in ("python", "-m", *_list_arguments(spec)))
    volumes = json.dumps([f"{spec.service}:/cluster/{spec.service}:ro"])
    head = f"  {spec.service}:\n    <<: *service\n{build}{network}"
    return f"{head}    command:\n{command}    volumes: {volumes}\n"


def _list_arguments(spec: ServiceSpec) -> Iterable[str]:
    yield f"services.{spec.service}"
    yield from (f"--{flag}=/cluster/{spec.service}/{file}" for flag, file in _list_credentials(spec))
    yield from _list_selecting_flags(spec)
    yield from _FLAGS.get(spec.service, ())
    yield f"--secure-port={_PORT}"
    yield "--secure-serving=false"


def _list_selecting_flags(spec: ServiceSpec) -> Iterator[str]:
    """Yield the flags that select all controllers; metadata queries what the selected ones need."""
    is_selected_by_name = spec.controller.name and not (spec.controller.in_wildcard or spec.controller.flag)
    if spec is METADATA or is_selected_by_name:
        named = (each.controller for each in CONTROLLER_SERVICES if not each.controller.flag)
        yield f"--controllers={','.join(each.display_name for each in named)}"
    for each in CONTROLLER_SERVICES:
        if each.controller.flag and spec in (METADATA, each):
            yield f"--{each.controller.flag}"


def _list_credentials(spec: ServiceSpec) -> Iterator[tuple[str, str]]:
    yield "nats-nkey-file", "seed.nk"
    yield "nats-ca-file", "ca.crt"
    if "talosconfig" in spec.secrets:
        yield "talosconfig", "talosconfig"
    if any(not rule.flag for rule in spec.policy_rules):
        yield "kubeconfig", "kubeconfig"
