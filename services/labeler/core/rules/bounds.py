"""Limits the cost of rules, so that neither a file nor one machine's facts delay the other Nodes."""

from typing import Final

from libs.common.cloud_config.model import NodeSelectorRequirement
from libs.common.cloud_config.selectors import count_instructions
from libs.common.contract.node import ANNOTATION_VALUE_LIMIT
from libs.gotemplate import Budget, Record, Template, TemplateError, render
from libs.gotemplate.bounds import MAX_STEPS, REGEX_INSTRUCTIONS_PER_STEP, REGEX_WORK_PER_STEP

# Even one rule for each of 1000 machines is more than operators maintain by hand.
MAX_RULES: Final = 1_000
MAX_ENTRIES: Final = 10_000  # keys of all rules together
# For one Node, over all rules: the steps of rendering, and the cost of selectors in the same unit.
MAX_NODE_STEPS: Final = 30_000
# Characters. The watcher publishes no longer values, so the labeler could not compare them.
MAX_ANNOTATION: Final = ANNOTATION_VALUE_LIMIT
# Bytes, keys and values of all annotations from rules. Kubernetes accepts 256 KiB for all annotations of a
# Node, which include the ownership record.
MAX_ANNOTATIONS: Final = 65_536
# Characters of metadata that does not become a label.
MAX_METADATA: Final = 1_024
_VALUES_PER_STEP: Final = 16  # of In and NotIn


class NodeBudgetExceeded(Exception):
    """All rules together need more than MAX_NODE_STEPS for one Node."""

    def __init__(self) -> None:
        super().__init__(f"the rules together need more than MAX_NODE_STEPS = {MAX_NODE_STEPS} steps")


class NodeBudget:
    """The steps that remain for the rules of one Node."""

    def __init__(self) -> None:
        self._left = MAX_NODE_STEPS

    def spend(self, steps: int) -> None:
        """Subtract the steps of work before it is done. Raises NodeBudgetExceeded."""
        self._left -= steps
        if self._left < 0:
            raise NodeBudgetExceeded

    def spend_on_requirement(self, requirement: NodeSelectorRequirement, text: str | None) -> None:
        """Subtract the steps of evaluating one requirement of a selector. Raises NodeBudgetExceeded.

        A pattern counts as if it had to be compiled: a file may have more than are kept compiled.
        """
        self.spend(1 + len(requirement.values) // _VALUES_PER_STEP)
        if requirement.operator == "Regexp" and text is not None:
            size = count_instructions(requirement.values[0])
            self.spend(size // REGEX_INSTRUCTIONS_PER_STEP + size * len(text) // REGEX_WORK_PER_STEP)

    def render(self, template: Template, data: Record, actions: list[tuple[int, int]] | None = None) -> str:
        """Render the template within this budget; `actions` as in `libs.gotemplate.render`.

        Raises NodeBudgetExceeded if the budget is the reason of the failure, otherwise TemplateError.
        """
        allowed = min(MAX_STEPS, self._left)
        budget = Budget(allowed)
        try:
            return render(template, data, budget, actions)
        except TemplateError:
            if budget.left < 0 and allowed < MAX_STEPS:
                raise NodeBudgetExceeded from None
            raise
        finally:
            self._left -= allowed - max(budget.left, 0)
