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


def test_render_uses_the_labelers_own_code():
    imported = {name for source in sources("cli") for name in imported_services(source)}
    assert {"services.labeler.plan.plan_node", "services.labeler.rules.apply_rules"} <= imported


def test_explain_csr_uses_the_decision_of_csr():
    imported = {name for source in sources("cli/explain") for name in imported_services(source)}
    assert {"services.csr.core.decide.decide", "services.csr.core.claim_index.ClaimIndex"} <= imported


def test_explain_node_uses_the_decisions_of_the_services():
    imported = {name for source in sources("cli/explain/node") for name in imported_services(source)}
    assert {
        "services.labeler.plan.plan_node",
        "services.labeler.plan.plan_unreachable_node",
        "services.lifecycle.evidence.assess_report",
        "services.lifecycle.evidence.assess_node",
        "services.lifecycle.decide.explain_exclusion",
        "services.lifecycle.shutdown_taint.plan_shutdown_taint",
    } <= imported


@pytest.mark.parametrize(
    ("module", "name", "calls"),
    [
        ("cli.explain.node.from_cluster", "kube", {"close"}),
        ("cli.cluster.chart_config", "kube", {"list_config_maps"}),
        ("cli.cluster.watcher_lease", "kube", {"get_lease"}),
        ("cli.status.ipam.from_cluster", "kube", {"list_config_maps", "close"}),
        ("cli.status.from_cluster", "kube", {"close"}),
        ("cli.cluster.pod_commands", "kube", {"close"}),
        ("cli.cluster.kube_listing", "kube", {"list_page", "list_nodes"}),
    ],
)
def test_modules_that_only_read_call_no_other_method(module: str, name: str, calls: set[str]):
    """All calls of these modules to an API server or a bus go through that name."""
    [source] = [s for s in sources("cli") if s.module == module]
    called = {
        node.attr
        for node in source.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    }
    assert called == calls


# The modules that query machines; all others get results as arguments.
ASKERS = {
    "cli.cluster.credentials",
    "cli.cluster.machine_query",
    "cli.render.from_cluster",
    "cli.explain.csr.from_cluster",
    "cli.explain.node.from_cluster",
    "cli.doctor.talos_credential_probe",
    "cli.doctor.pod_probe",
}


def test_only_these_modules_query_machines():
    asking = {
        source.module
        for source in sources("cli")
        for name in imported_services(source)
        if re.fullmatch(ASKING, name)
    }
    assert asking == ASKERS


def test_modules_that_explain_query_nothing():
    gathering = {
        "cli.cluster.machine_query",
        "cli.cluster.credentials",
        "cli.explain.csr.from_cluster",
        "cli.explain.node.from_cluster",
        "cli.explain.node.context_from_cluster",
    }
    assert importers_of(gathering, "cli") == {
        "cli.explain.command",
        "cli.explain.csr.from_cluster",
        "cli.render.from_cluster",
        "cli.status.ipam.from_cluster",
        "cli.explain.node.from_cluster",
        "cli.cluster.pod_commands",
        "cli.inside.flow_client",
        "cli.inside.command",
        "cli.status.from_cluster",
        "cli.cluster.kube_listing",
        "cli.doctor.from_cluster",
    }


def test_status_ipam_uses_the_code_of_ipam():
    imported = {name for source in sources("cli/status") for name in imported_services(source)}
    modules = ("pages.decode_page", "pool_usage.measure_usage", "effective_networks.validate_network_flags")
    assert {f"services.ipam.{name}" for name in modules} <= imported
    assert {name.split(".")[1] for name in imported} == {"ipam"}


def test_modules_that_assess_a_status_query_nothing():
    gathering = {
        "cli.cluster.credentials",
        "cli.status.ipam.from_cluster",
        "cli.status.from_cluster",
        "cli.inside.flow_client",
        "cli.inside.flow_reader",
        "cli.cluster.pod_commands",
    }
    assert importers_of(gathering, "cli/status") == {
        "cli.status.command",
        "cli.status.ipam.run_ipam_status",
        "cli.status.ipam.from_cluster",
        "cli.status.run_status",
        "cli.status.from_cluster",
    }


def test_the_checks_of_doctor_query_nothing():
    """No check uses a cluster, a clock or a file."""
    asking = {"asyncio", "os", "time"}
    for source in sources("cli/doctor/checks"):
        imported = {node.module for node in source.nodes if isinstance(node, ast.ImportFrom)}
        assert not {
            name
            for name in imported
            if name and re.search(r"from_cluster|_queries|query_machine|kube_reader|_probe|kube_api", name)
        }
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
    assert requests == {("cli.cluster.kube_reader", verb) for verb in ("get", "list", "create")}
    reviewing = {
        source.module
        for source in sources("cli")
        for node in source.nodes
        if isinstance(node, ast.Attribute) and node.attr == "create_review"
    }
    assert reviewing == {"cli.doctor.access_reviews"}
