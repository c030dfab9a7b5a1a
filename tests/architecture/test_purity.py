"""Pure unless the name says otherwise: outside the shell no await, clock, environment, logger or I/O."""

import ast
import re

import pytest

from tests.architecture.sources import Source, imported_roots, sources

# The shell: the only files that touch the world. Everything else in these folders is pure.
SHELL = (
    # adapters to outside systems: what talks to them; what they decide is pure
    r"libs\.common\.kube_api\.(api|config|connection|context|credentials|exec|exec_plugin|handshake|lock|reflector|tls|transport|version_check)",
    r"libs\.common\.kube_api\.(event_queue|newest_event)",
    r"libs\.common\.nats_bus\.\w+",
    r"libs\.common\.memory_bus\.(bus|consume)",
    r"services\.metadata\.talos_api\.(api|calls|channel|cluster|connection|credentials|http2|news|session|watch)",
    # what every process needs of the world
    r"libs\.common\.process\.\w+",
    r"libs\.common\.settings\.(reading|cloud_config_file|help_text)",
    r"libs\.common\.(telemetry|tracing|logs|metrics|handling|publisher|verdicts|watch_flow|watch_ownership|decisions)",
    r"libs\.common\.bus",  # the Protocol of the shell: declares, does nothing
    # services: what receives, watches and runs
    r"services\.(\w+\.)?__main__",
    r"services\.\w+\.(service|settings|on_\w+|watch_\w+|\w+_api)",
    r"services\.watcher\.(leader|term|rounds|publish_objects|observe_objects)",
    r"services\.metadata\.(ask_machine|ask_others|dial_back|kept_running|observed_nodes|signing_requests)",
    r"services\.labeler\.(decisions|replay|node_events)",
    r"services\.csr\.node_events",
    r"services\.ipam\.(allocator|gathering|measured|node_events)",
    r"services\.lifecycle\.(node_events|provider)",
    r"services\.bootstrap\.(keep|prepare|run)",
    # the simulated machines: what runs, listens and answers
    r"libs\.testbed\.sim_machines\.(__main__|client|connection|control|doors|machine|service)",
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

HELD = ("libs/common", "services", "libs/testbed/sim_machines")
PURE = [s for s in sources(*HELD) if not any(re.fullmatch(p, s.module) for p in SHELL)]


@pytest.mark.parametrize("source", PURE, ids=lambda source: source.module)
def test_a_core_touches_nothing(source: Source):
    assert not imported_roots(source.tree) & WORLD
    for node in ast.walk(source.tree):
        where = f"{source.path.name}:{getattr(node, 'lineno', 0)}"
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), f"{where} is asynchronous"
        if isinstance(node, ast.Call):
            called = node.func
            assert not (isinstance(called, ast.Name) and called.id in {"open", "print", "input"}), where
            assert not (isinstance(called, ast.Attribute) and called.attr in CLOCKS), f"{where} reads a clock"


def test_the_list_of_the_shell_names_only_what_exists():
    everything = [source.module for source in sources(*HELD)]
    for pattern in SHELL:
        assert any(re.fullmatch(pattern, module) for module in everything), f"{pattern} matches no module"
