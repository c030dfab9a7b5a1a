"""The parts of services that `talos-ccm` uses: decisions and queries of machines, never a shell module."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.sources import Source, sources
from tests.architecture.test_purity import SHELL

# Settings declare the flags that a process accepts; reading them runs nothing.
FLAGS = r"services\.\w+\.settings"
# The command queries machines by metadata's own code, so it gets the same answers.
ASKING = r"services\.metadata\.machines\.(query_machine|replacement_detector)|libs\.talos\.\w+"


def imported_services(source: Source) -> Iterator[str]:
    """Modules of services and of the Talos API client that a module imports anywhere."""
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.startswith(("services.", "libs.talos.")))


def importers_of(modules: set[str], folder: str) -> set[str]:
    """Modules below the folder that import from one of `modules`."""
    return {
        source.module
        for source in sources(folder)
        for node in source.nodes
        if isinstance(node, ast.ImportFrom) and node.module in modules
    }


def test_the_command_imports_no_shell_module_of_a_service_except_for_queries_and_flags():
    offences = {
        (source.module, name)
        for source in sources("cli")
        for name in imported_services(source)
        for pattern in SHELL
        if re.fullmatch(pattern, name) and not re.fullmatch(f"{ASKING}|{FLAGS}", name)
    }
    assert not offences


@pytest.mark.parametrize(
    ("folder", "package", "names"),
    [
        (
            "cli",
            "services.labeler.core",
            ("plan.plan_node.plan_node", "rules.application.apply_rules"),
        ),
        ("cli/explain", "services.csr.core", ("decide.decide", "claim_index.ClaimIndex")),
        (
            "cli/explain/node",
            "services.labeler.core.plan.plan_node",
            ("plan_node", "plan_unreachable_node"),
        ),
        (
            "cli/explain/node",
            "services.lifecycle.core",
            ("decide.SOURCES", "decide.explain_exclusion", "shutdown_taint.plan_shutdown_taint"),
        ),
        (
            "cli/explain/service",
            "services.cloud.core.balancers",
            (
                "balancer_record.is_selected",
                "select_targets.select_targets",
                "balancer_status.find_condition",
            ),
        ),
        (
            "cli/status",
            "services.ipam",
            (
                "core.pages.decode_pages",
                "core.pools.build_pools",
                "core.pool_usage.measure_usage",
                "settings.IpamSettings",
            ),
        ),
    ],
)
def test_a_command_uses_the_code_of_the_service(folder: str, package: str, names: tuple[str, ...]):
    imported = {name for source in sources(folder) for name in imported_services(source)}
    assert {f"{package}.{name}" for name in names} <= imported


def test_the_cluster_is_read_and_never_written():
    """No module calls a method of the Kubernetes client that writes; `exec` runs only `talos-ccm inside`."""
    reads = {
        "close",
        "fetch_server_identity",
        "get_config_map",
        "get_lease",
        "get_namespace",
        "get_service",
        "list_page",
        "transport",
    }
    used = {
        node.attr
        for source in sources("cli")
        if not source.module.startswith("cli.demo")  # writes to a cluster of its own
        for node in source.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "kube"
    }
    assert used <= reads | {"with_own_connections"}


# The modules that query machines; all others get results as arguments.
ASKERS = {
    "cli.cluster.access",
    "cli.cluster.machine_query",
    "cli.render.from_cluster",
    "cli.explain.csr.from_cluster",
    "cli.explain.node.from_cluster",
    "cli.inside.talos_probe",
}


def test_only_these_modules_query_machines():
    asking = {
        source.module
        for source in sources("cli")
        for name in imported_services(source)
        if re.fullmatch(ASKING, name)
    }
    assert asking == ASKERS


# The modules that query a cluster, a pod, NATS or a machine; a view gets a snapshot as an argument.
READERS = {
    "cli.cluster.access",
    "cli.cluster.kube_reader",
    "cli.cluster.machine_query",
    "cli.cluster.pod_commands",
    "cli.cluster.read_cluster",
    "cli.doctor.kubelet_queries",
    "cli.doctor.read_installation",
    "cli.explain.csr.from_cluster",
    "cli.explain.node.from_cluster",
    "cli.explain.service.from_cluster",
    "cli.inside.flow_reader",
    "cli.inside.talos_probe",
    "cli.render.from_cluster",
}
SHELLS = r"cli\.(demo|inside)\..+|.+\.(command|run_\w+)"  # start a command, read, and print


def test_views_query_nothing():
    importers = importers_of(READERS, "cli") - READERS
    views = {module for module in importers if not re.fullmatch(SHELLS, module)}
    assert views == {"cli.render.node_selection"}, "it chooses where render gets its Nodes"


def test_status_uses_no_service_but_those_of_pod_cidrs_and_accounts():
    imported = {name for source in sources("cli/status") for name in imported_services(source)}
    assert {name.split(".")[1] for name in imported} == {"ipam", "cloud", "lifecycle"}


def test_the_checks_of_doctor_query_nothing():
    """No check uses a clock or a file."""
    asking = {"asyncio", "os", "time"}
    for source in sources("cli/doctor/checks"):
        assert not source.imported_roots & asking
        called = {
            n.func.attr for n in source.nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
        }
        assert not called & {"now", "utcnow", "today"}, source.module


def test_the_command_creates_only_reviews_which_the_server_does_not_store():
    """One place sends creates, and one module calls it; all other requests are reads."""
    requests = {
        (source.module, keyword.value.value)
        for source in sources("cli")
        for node in source.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Request"
        for keyword in node.keywords
        if keyword.arg == "verb" and isinstance(keyword.value, ast.Constant)
    }
    assert requests == {("cli.cluster.kube_reader", "get")}
    reviewing = {
        source.module
        for source in sources("cli")
        for node in source.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "review_access"
    }
    assert reviewing == {"cli.doctor.read_installation"}
