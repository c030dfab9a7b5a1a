"""One adapter per outside library: a breaking change of a library stays in one place."""

import ast
import re

import pytest

from tests.architecture.sources import sources

# library -> the modules that may import it (a regular expression for the dotted name)
ADAPTERS = {
    "nats": r"libs\.common\.bus\.nats\.\w+",
    "nkeys": r"libs\.common\.bus\.nats\.nats_access",
    "aiohttp": r"libs\.common\.(kube\.\w+|service\.health)|libs\.clouds\.http_reader"  # health is a server
    r"|libs\.testbed\..+",
    "kubernetes_asyncio": r"libs\.common\.kube\.kubeconfig_library",
    "grpclib": r"libs\.talos\.(bounded_protocol|channel|connection)"
    r"|libs\.testbed\.sim_machines\.(talos_service|connection)",
    "h2": r"libs\.talos\.(bounded_protocol|channel)|libs\.testbed\.sim_machines\.connection",
    "betterproto2": r"libs\.talos\..+",
    "opentelemetry": r"libs\.common\.observability\.(telemetry|tracing)",
    "requests": r"libs\.common\.observability\.tracing",  # opentelemetry exports with it
    "re2": r"libs\.gotemplate\.regular_expressions|libs\.common\.cloud_config\.selectors",
    "prometheus_client": r"libs\.common\.observability\.metrics",
    "uvloop": r"libs\.common\.service\.run_process",  # services only: tests and testbed stay on asyncio
    "click": r"cli\..+",
    "rich": r"cli\..+",
}


@pytest.mark.parametrize("library", sorted(ADAPTERS))
def test_a_library_is_imported_by_its_adapter_only(library: str):
    offenders = [
        source.module
        for source in sources("libs", "services", "cli")
        if library in source.imported_roots and not re.fullmatch(ADAPTERS[library], source.module)
    ]
    assert not offenders, f"{library} is imported outside its adapter ({ADAPTERS[library]})"


def test_one_module_makes_the_tls_contexts_of_clients():
    """The defaults of Python differ from version to version."""
    makers = {"create_default_context", "PROTOCOL_TLS_CLIENT", "_create_unverified_context"}
    found = {
        source.module
        for source in sources("libs/clouds", "libs/common", "libs/talos", "services", "cli")
        for node in source.nodes
        if isinstance(node, ast.Attribute) and node.attr in makers
    }
    assert found == {"libs.common.client_tls"}


def test_every_outside_library_has_a_place():
    known = set(ADAPTERS) | {"msgspec", "cryptography", "yaml"}
    ours = {"libs", "services", "cli"}
    import sys

    unknown = {
        (root, source.module)
        for source in sources("libs", "services", "cli")
        for root in source.imported_roots
        if root not in known | ours and root not in sys.stdlib_module_names
    }
    assert not unknown, "a new library needs its adapter in ADAPTERS"
