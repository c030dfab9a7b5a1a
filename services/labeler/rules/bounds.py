"""What rules may cost: neither a file nor what a machine says of itself may hold up the other Nodes."""

from typing import Final

from libs.common.contract.node import ANNOTATION_VALUE_LIMIT
from libs.gotemplate import Budget, Record, Template, TemplateError, render
from libs.gotemplate.bounds import MAX_STEPS

# A file of one rule for each of 1000 machines is beyond what anybody maintains by hand.
MAX_RULES: Final = 1_000
MAX_ENTRIES: Final = 10_000  # keys of all rules together
# For one Node, over all rules: what a rendering counts, and what selectors cost in the same coin.
MAX_NODE_STEPS: Final = 30_000
# Characters. The watcher says nothing of longer values: nobody could tell ours from none.
MAX_ANNOTATION: Final = ANNOTATION_VALUE_LIMIT
# Bytes, keys and values of all annotations from rules. Kubernetes takes 256 KiB for all that a Node has, and
# our record of what we set is among them.
MAX_ANNOTATIONS: Final = 65_536
# Characters, of metadata that becomes no label.
MAX_METADATA: Final = 1_024
MAX_SKIPPED_ENTRIES: Final = 50  # that are told: each may become an Event


class NodeBudgetExceeded(Exception):
    """The rules together ask for more than MAX_NODE_STEPS."""

    def __init__(self) -> None:
        super().__init__(f"the rules together take more than MAX_NODE_STEPS = {MAX_NODE_STEPS} steps")


class NodeBudget:
    """Steps that the rules have left for one Node."""

    def __init__(self) -> None:
        self._left = MAX_NODE_STEPS

    def spend(self, steps: int) -> None:
        """Take steps, or raise NodeBudgetExceeded before the work is done."""
        self._left -= steps
        if self._left < 0:
            raise NodeBudgetExceeded

    def render(self, template: Template, data: Record) -> str:
        """A rendering out of this budget. Raises TemplateError, NodeBudgetExceeded if that is why."""
        allowed = min(MAX_STEPS, self._left)
        budget = Budget(allowed)
        try:
            return render(template, data, budget)
        except TemplateError:
            if budget.left < 0 and allowed < MAX_STEPS:
                raise NodeBudgetExceeded from None
            raise
        finally:
            self._left -= allowed - max(budget.left, 0)
