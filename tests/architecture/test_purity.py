"""Pure unless the name says otherwise: outside the shell no await, clock, environment, logger or I/O."""

import ast
import re

import pytest

from tests.architecture.sources import Source, sources

# The shell: the only modules with side effects. All others in these folders are pure.
SHELL = (
    # adapters to outside systems
    r"libs\.common\.client_tls",
    r"libs\.common\.kube\.(api|credentials|keepalive_socket|kubeconfig|kubeconfig_library|load_kube_config|plugin_guard|pod_exec)",
    r"libs\.common\.kube\.(event_recorder|lease_lock|reflector|request_queue|server_identity|transport|version_check)",
    r"libs\.common\.bus\.nats\.\w+",
    r"libs\.common\.bus\.memory\.(bus|consume_loop)",
    r"libs\.talos\.(api|bounded_protocol|calls|channel|cluster_name|connection|credentials)",
    r"libs\.talos\.(machine_watch|session|stream_buffer)",
    # the process: clock, environment, logs, metrics
    r"libs\.common\.service\.(?!startup_gate)\w+",
    r"libs\.common\.settings\.(read_settings|cloud_config_reloader|help_text)",
    r"libs\.common\.bus\.(consumer_middleware|dead_letters|(decision|ordered)_publisher|flow)",
    r"libs\.common\.observability\.(telemetry|tracing|metrics)",
    r"libs\.common\.clocks",
    r"libs\.common\.bus\.protocol",  # only declarations
    r"libs\.clouds\.(instances|credential_file|http_reader)",  # the first has only declarations
    r"libs\.clouds\.(hcloud\.hcloud|thalassa\.thalassa)_instances",
    # services: modules that receive, watch, write and run
    r"services\.(\w+\.)?__main__",
    r"services\.\w+\.(service|settings|on_\w+|\w+_api)",
    r"services\.(cloud|csr|ipam|labeler|lifecycle|metadata|watcher)\.(?!core\b)\w+",
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
PURE = [s for s in sources(*HELD) if not any(re.fullmatch(p, s.module) for p in SHELL)]


@pytest.mark.parametrize("source", PURE, ids=lambda source: source.module)
def test_a_pure_module_has_no_side_effect(source: Source):
    assert not source.imported_roots & WORLD
    for node in source.nodes:
        where = f"{source.path.name}:{getattr(node, 'lineno', 0)}"
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), f"{where} is asynchronous"
        if isinstance(node, ast.Call):
            called = node.func
            assert not (isinstance(called, ast.Name) and called.id in {"open", "print", "input"}), where
            assert not (isinstance(called, ast.Attribute) and called.attr in CLOCKS), f"{where} reads a clock"


CORES = [s for s in sources("services") if re.match(r"services\.\w+\.core\b", s.module)]


@pytest.mark.parametrize("source", CORES, ids=lambda source: source.module)
def test_a_core_uses_nothing_else_of_its_service(source: Source):
    service = source.module.partition(".core")[0]
    imported = {node.module or "" for node in source.nodes if isinstance(node, ast.ImportFrom)}
    assert not {name for name in imported if name.startswith(service) and ".core" not in name}


def test_every_pattern_of_the_shell_matches_a_module():
    everything = [source.module for source in sources(*HELD)]
    for pattern in SHELL:
        assert any(re.fullmatch(pattern, module) for module in everything), f"{pattern} matches no module"
