"""Each page of docs/contributing: its steps give what it promises, and none of them can be left out."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pytest

from libs.testbed.fork_server import ForkServer
from tests.page_steps import Step, TreeCopy, read_steps

# What the checks import from outside of the tree; no step of a page changes it.
PRELOADED: Final = (
    "aiohttp",
    "betterproto2",
    "cryptography.x509",
    "grpclib.client",
    "msgspec",
    "opentelemetry.trace",
    "prometheus_client",
    "pytest",
    "re2",
    "rich.console",
    "yaml",
)


class Walk(msgspec.Struct, frozen=True):
    """A page or a section of it; its module in tests.page_checks; what its example adds; further tests."""

    page: str
    check: str
    name: str
    section: str = ""
    tests: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """Its steps."""
        return read_steps(self.page, self.section)


WALKS = {
    "service": Walk(
        "add-a-service.md",
        "add_a_service",
        "auditor",
        tests=("architecture/test_wiring.py", "unit/pages/test_metrics_page.py"),
    ),
    "platform": Walk(
        "add-a-platform.md", "add_a_platform", "examplecloud", tests=("unit/cli/render/test_render.py",)
    ),
    "fact": Walk(
        "add-a-fact-or-rule-field.md",
        "add_a_fact",
        "DomainName",
        "A fact",
        tests=("unit/pages/test_rules_page.py",),
    ),
    "rule field": Walk("add-a-fact-or-rule-field.md", "add_a_rule_field", "disabled", "A rule field"),
    "flag": Walk("add-a-flag-or-limit.md", "add_a_flag", "talos-connect-timeout"),
    "template function": Walk(
        "add-a-template-function.md",
        "add_a_template_function",
        "nospace",
        tests=("unit/pages/test_rules_page.py",),
    ),
}
LEFT_OUT = [
    pytest.param(walk, number, id=f"{name}, {step.title}")
    for name, walk in WALKS.items()
    for number, step in enumerate(walk.steps)
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> TreeCopy:
    return TreeCopy(tmp_path_factory.mktemp("copy"))


@pytest.fixture(scope="module")
def forks(tree: TreeCopy) -> Iterator[ForkServer]:
    """Forks programs in the copy: imports of other libraries cost more than most checks."""
    with ForkServer.open(tree.root, *PRELOADED) as server:
        yield server


def find_fault(tree: TreeCopy, forks: ForkServer, walk: Walk, steps: Sequence[Step]) -> str:
    """Apply the steps and check the result; return what is wrong, "" if nothing is."""
    try:
        tree.apply(steps)
    except (LookupError, FileNotFoundError) as error:
        return str(error)
    commands = [step.text for step in steps if step.place == "run"]
    status, output = tree.run_forked(forks, "tests.page_checks", walk.check, walk.name, *commands)
    return output if status else ""


@pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS)
def test_the_steps_of_a_page_give_what_it_promises(tree: TreeCopy, forks: ForkServer, walk: Walk):
    assert find_fault(tree, forks, walk, walk.steps) == ""
    sources = [name for name in tree.list_changes() if name.endswith(".py")]
    for check in (("check",), ("format", "--check")):
        status, output = tree.run_forked(forks, "ruff", *check, "--no-cache", *sources)
        assert status == 0, output
    if walk.tests:
        tests = [f"tests/{test}" for test in walk.tests]
        options = ("-q", "-n0", "-p", "no:cacheprovider")
        status, output = tree.run_forked(forks, "pytest", *options, *tests)
        assert status == 0, output


@pytest.mark.parametrize(("walk", "left_out"), LEFT_OUT)
def test_no_step_of_a_page_can_be_left_out(tree: TreeCopy, forks: ForkServer, walk: Walk, left_out: int):
    steps = walk.steps
    assert find_fault(tree, forks, walk, (*steps[:left_out], *steps[left_out + 1 :]))


def test_a_new_service_is_behind_the_walls_at_once(tree: TreeCopy):
    tree.apply(WALKS["service"].steps)
    check = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    assert tree.run("-c", check).returncode == 0
    service = tree.root / "services" / "auditor" / "service.py"
    service.write_text(service.read_text() + "\nfrom services.csr import decide\n")
    broken = tree.run("-c", check)
    assert "services.auditor is not allowed to import services.csr" in broken.stdout


def test_a_new_service_changes_no_other_file_by_hand(tree: TreeCopy):
    steps = WALKS["service"].steps
    tree.apply(steps)
    assert {path.split("/")[0] for path in tree.list_changes()} == {"deploy", "docs", "libs", "services"}
    by_hand = {path for path in tree.list_changes() if not path.startswith("services/auditor/")}
    assert by_hand == {
        "libs/common/contract/services.py",
        "deploy/k8s/chart/values.yaml",
        "docs/design.md",
    }
