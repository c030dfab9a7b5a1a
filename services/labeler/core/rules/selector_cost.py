"""Computes the cost of a selector before it is evaluated, in steps of the template budget."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from libs.common.cloud_config.model import NodeSelectorRequirement, NodeSelectorTerm, Rule
from libs.common.cloud_config.selectors import (
    PATTERN_CACHE_SIZE,
    PatternError,
    check_pattern,
    count_instructions,
)
from libs.gotemplate.bounds import REGEX_INSTRUCTIONS_PER_STEP, REGEX_WORK_PER_STEP

_VALUES_PER_STEP: Final = 16  # of In and NotIn


class SelectorCost(msgspec.Struct, frozen=True):
    """The maximum cost of a selector; evaluation ends at the first term that matches."""

    steps: int  # for every machine
    patterns: tuple[tuple[str, int], ...]  # key of the field, instructions for each byte of its text

    def steps_for(self, texts: Mapping[str, str]) -> int:
        """Return the steps for a machine with these texts by field key."""
        work = sum(size * len(texts.get(key, "")) for key, size in self.patterns)
        return self.steps + work // REGEX_WORK_PER_STEP


def compute_selector_costs(rules: Sequence[Rule]) -> list[SelectorCost]:
    """Return the cost of the selector of each rule, in the same order."""
    requirements = (each for rule in rules for each in _requirements(rule.selector))
    patterns = {each.values for each in requirements if each.operator == "Regexp"}
    recompiles = len(patterns) > PATTERN_CACHE_SIZE
    return [_cost(rule.selector, recompiles=recompiles) for rule in rules]


def _requirements(selector: Sequence[NodeSelectorTerm]) -> Iterator[NodeSelectorRequirement]:
    for term in selector:
        yield from term.requirements


def _cost(selector: Sequence[NodeSelectorTerm], *, recompiles: bool) -> SelectorCost:
    """Return the cost of one selector; `recompiles`: each pattern is compiled again for each machine."""
    steps = 1 + len(selector)
    patterns = []
    for requirement in _requirements(selector):
        steps += 1 + len(requirement.values) // _VALUES_PER_STEP
        if requirement.operator == "Regexp":
            size = _size(requirement.values)
            patterns.append((requirement.key, size))
            steps += size // REGEX_INSTRUCTIONS_PER_STEP if recompiles else 0
    return SelectorCost(steps, tuple(patterns))


def _size(patterns: tuple[str, ...]) -> int:
    """Return the instructions of the pattern; 0 if it is invalid, which the reader of the file reports."""
    if len(patterns) != 1:
        return 0
    try:
        check_pattern(patterns[0])
    except PatternError:
        return 0
    return count_instructions(patterns[0])
