"""What docs/contributing/add-a-platform.md promises."""

from cli.render.samples import load_samples
from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.platforms import PLATFORMS
from libs.testbed.machine_facts import make_machine
from services.labeler.plan import ClusterConfig, plan_node
from services.labeler.plan.node_ownership import FOREIGN_SCHEMES
from tests import platform_cases
from tests.builders import make_node


def check(name: str) -> None:
    """Check row, case, samples, docs, and what a Node of the platform gets."""
    scheme = PLATFORMS[name].scheme
    machine = make_machine(platform=name).platform
    assert machine is not None
    assert machine.provider_id.startswith(f"{scheme}://")
    assert scheme in FOREIGN_SCHEMES
    (case,) = (each for each in platform_cases.PLATFORMS if each.platform == name)
    changes = plan_node(make_node(), case.facts(), "nodename", ClusterConfig()).changes
    assert changes.provider_id == case.expected_provider_id
    assert case.expected_labels().items() <= changes.labels.items()
    assert load_samples()[name].facts.platform.provider_id.startswith(f"{scheme}://")
    (warning,) = parse_cloud_config(f"ownership: {{providerIDSchemes: [{name}]}}", "f").warnings
    assert f"{scheme}://" in warning.problem
