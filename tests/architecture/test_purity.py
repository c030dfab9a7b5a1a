"""Pure unless the name says otherwise, and one adapter per outside library."""

import ast
import re

import pytest

from tests.architecture.sources import sources

# The shell: the only modules with side effects. All others in these folders are pure.
SHELL = (
    # adapters to outside systems
    r"libs\.common\.(client_tls|requests_session)",
    r"libs\.common\.kube\.(access_reviews|api|credentials|keepalive_socket|kubeconfig|exec_plugins|load_kube_config|plugin_guard|pod_exec)",
    r"libs\.common\.kube\.(event_recorder|reflector|request_queue|server_identity|transport)",
    r"libs\.common\.bus\.nats\.\w+",
    r"libs\.common\.bus\.memory\.(bus|consume_loop)",
    r"libs\.talos\.(api|bounded_protocol|calls|channel|cluster_name|connection|credentials)",
    r"libs\.talos\.(machine_watch|session|stream_buffer)",
    # the process: clock, environment, logs, metrics
    r"libs\.common\.service\.(?!startup_gate|bus_reachability)\w+",
    r"libs\.common\.settings\.(read_settings|cloud_config_reloader|help_text)",
    r"libs\.common\.bus\.(cloud_follower|consumer_middleware|dead_letters|(decision|ordered)_publisher|flow)",
    r"libs\.common\.observability\.(telemetry|tracing|metrics)",
    r"libs\.common\.clocks",
    r"libs\.common\.bus\.protocol",  # only declarations
    r"libs\.clouds\.(balancers|instances|routes)",  # only declarations
    r"libs\.clouds\.(account_session|cloud_writes|http_reader)",
    r"libs\.clouds\.(hcloud\.hcloud|openstack\.openstack|thalassa\.thalassa)_(api|instances|routes)",
    r"libs\.clouds\.hcloud\.balancers\.(action_waiter|hcloud_balancers)",
    r"libs\.clouds\.openstack\.balancers\.octavia_balancers",
    r"libs\.clouds\.thalassa\.balancers\.thalassa_balancers",
    r"libs\.clouds\.openstack\.(keystone|object_reader)",
    # services: modules that receive, watch, write and run
    r"services\.(\w+\.)?__main__",
    r"services\.\w+\.(service|settings|on_\w+|\w+_api)",
    r"services\.(?!bootstrap\b|definitions\b)\w+\.(?!core\b)\w+",
    r"services\.console\.login\.(guarded_pages|login_pages|session_keeper)",
    r"services\.metadata\.machines\.\w+",
    r"services\.bootstrap\.(key_stores|run|server_reconciler)",
    # the simulated machines: process, connections, calls
    r"libs\.testbed\.sim_machines\.(__main__|connection|sim_machine|talos_service)",
)
WORLD = {
    "asyncio",
    "os",
    "time",
    "random",
    "logging",
    "socket",
    "subprocess",
    "threading",
    "ssl",
    "secrets",
    "uuid",
}
CLOCKS = {"now", "utcnow", "today"}

HELD = (
    "libs/clouds",
    "libs/common",
    "libs/talos",
    "libs/gotemplate",
    "services",
    "libs/testbed/sim_machines",
)


def has_effect(node: ast.AST) -> bool:
    """Whether the node waits, does I/O or reads a clock."""
    if isinstance(node, ast.AsyncFunctionDef | ast.Await):
        return True
    match node:
        case ast.Call(func=ast.Name(id="open" | "print" | "input")):
            return True
        case ast.Call(func=ast.Attribute(attr=attr)):
            return attr in CLOCKS
    return False


def test_no_pure_module_has_a_side_effect():
    pure = [s for s in sources(*HELD) if not any(re.fullmatch(p, s.module) for p in SHELL)]
    assert not [source.module for source in pure if source.imported_roots & WORLD]
    assert not [(s.module, ast.unparse(node)) for s in pure for node in s.nodes if has_effect(node)]


def test_no_core_uses_anything_else_of_its_service():
    cores = [s for s in sources("services") if re.match(r"services\.\w+\.core\b", s.module)]
    assert len(cores) > 50
    for source in cores:
        service = source.module.partition(".core")[0]
        imported = {node.module or "" for node in source.nodes if isinstance(node, ast.ImportFrom)}
        outside = {name for name in imported if name.startswith(service) and ".core" not in name}
        assert not outside, source.module


def test_every_pattern_of_the_shell_matches_a_module():
    everything = [source.module for source in sources(*HELD)]
    for pattern in SHELL:
        assert any(re.fullmatch(pattern, module) for module in everything), f"{pattern} matches no module"


# ---- adapters


# Programs in an environment of their own, which start Neutron and Octavia.
OPENSTACK_SERVICES = r"libs\.testbed\.clouds\.openstack_services\.serve_\w+"
# library -> the modules that may import it (a regular expression for the dotted name)
ADAPTERS = {
    "nats": r"libs\.common\.bus\.nats\.\w+",
    "nkeys": r"libs\.common\.bus\.nats\.nats_access",
    "aiohttp": r"libs\.common\.(kube\.\w+|service\.(health|web_listener))"  # servers
    r"|libs\.clouds\.http_reader|services\.console\.(web_server|login\.\w+_pages)"
    r"|libs\.testbed\..+",
    "kubernetes_asyncio": r"libs\.common\.kube\.exec_plugins",
    "grpclib": r"libs\.talos\.(bounded_protocol|channel|connection)"
    r"|libs\.testbed\.sim_machines\.(talos_service|connection)",
    "h2": r"libs\.talos\.(bounded_protocol|channel)|libs\.testbed\.sim_machines\.connection",
    "betterproto2": r"libs\.talos\..+",
    "opentelemetry": r"libs\.common\.observability\.(telemetry|tracing)",
    # opentelemetry exports and openstacksdk logs in with it
    "requests": r"libs\.common\.(observability\.tracing|requests_session)|libs\.clouds\.openstack\.keystone",
    "openstack": rf"libs\.clouds\.openstack\.keystone|{OPENSTACK_SERVICES}",
    "keystoneauth1": rf"libs\.clouds\.openstack\.keystone|{OPENSTACK_SERVICES}",
    **dict.fromkeys(("neutron", "neutron_lib", "octavia", "oslo_config"), OPENSTACK_SERVICES),
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
