"""Searches all states of a model, breadth first, and describes a violation as a list of steps."""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from itertools import pairwise
from typing import Generic, TypeVar

import msgspec

StateT = TypeVar("StateT", bound=Hashable)


class Step(msgspec.Struct, Generic[StateT], frozen=True, gc=False):
    """One possible next step of a state."""

    text: str
    after: StateT
    is_progress: bool  # the parts take it by themselves; otherwise a fault or a change of the cluster


class Model(msgspec.Struct, Generic[StateT], frozen=True, kw_only=True):
    """A start state, the possible steps, and what must hold."""

    start: StateT
    list_steps: Callable[[StateT], Iterator[Step[StateT]]]
    find_violation: Callable[[StateT], str]  # of any state; "" without one
    find_unfinished: Callable[[StateT], str]  # of a state without a step of progress; "" if all is done


class Counterexample(msgspec.Struct, frozen=True):
    """A shortest list of steps to a state that must not exist."""

    violation: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{number:3}. {text}" for number, text in enumerate(self.steps, start=1)]
        return "\n".join([f"{self.violation}, after {len(self.steps)} steps:", *lines])


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a search visited, up to the first violation."""

    states: int
    depth: int  # steps from the start to the last state found
    settling_steps: int  # most steps of progress in a row, so from any state until all is done
    counterexample: Counterexample | None

    def __str__(self) -> str:
        if self.counterexample is not None:
            return f"{self.states} states; {self.counterexample}"
        settled = f"settled within {self.settling_steps} steps after the last fault"
        return f"{self.states} states, depth {self.depth}, {settled}; no violation"


def search(model: Model[StateT]) -> SearchResult:
    """Visit every reachable state; stop at the first violation. It ends if the model is finite."""
    return _Search(model).run()


class _Search(Generic[StateT]):
    def __init__(self, model: Model[StateT]) -> None:
        self._model = model
        self._numbers: dict[StateT, int] = {model.start: 0}
        self._parents: list[int] = [0]
        self._depths: list[int] = [0]
        self._progress: list[tuple[int, ...]] = []  # by state number: the states after steps of progress

    def run(self) -> SearchResult:
        waiting = deque([self._model.start])
        while waiting:
            state = waiting.popleft()
            number = len(self._progress)  # states leave the queue in the order of their numbers
            if violation := self._model.find_violation(state) or self._visit(number, state, waiting):
                return self._result(self._describe(number, violation))
        settling_steps, endless = _longest_path(self._progress)
        if endless is not None:
            return self._result(self._describe(endless, "the steps of progress never end"))
        return self._result(None, settling_steps)

    def _visit(self, number: int, state: StateT, waiting: deque[StateT]) -> str:
        """Queue the states after this one; return why it may not be the end, "" if it may or is none."""
        progress = []
        for step in self._model.list_steps(state):
            found = self._numbers.setdefault(step.after, len(self._numbers))
            if found == len(self._parents):
                self._parents.append(number)
                self._depths.append(self._depths[number] + 1)
                waiting.append(step.after)
            if step.is_progress:
                progress.append(found)
        self._progress.append(tuple(progress))
        return "" if progress else self._model.find_unfinished(state)

    def _result(self, counterexample: Counterexample | None, settling_steps: int = 0) -> SearchResult:
        return SearchResult(
            states=len(self._parents),
            depth=self._depths[-1],
            settling_steps=settling_steps,
            counterexample=counterexample,
        )

    def _describe(self, number: int, violation: str) -> Counterexample:
        """Follow the parents back to the start, and name the step between each two states."""
        path = [number]
        while path[-1] != 0:
            path.append(self._parents[path[-1]])
        by_number = {number: state for state, number in self._numbers.items()}
        states = [by_number[each] for each in reversed(path)]
        texts = [self._text_between(before, after) for before, after in pairwise(states)]
        return Counterexample(violation, tuple(texts))

    def _text_between(self, before: StateT, after: StateT) -> str:
        return next(step.text for step in self._model.list_steps(before) if step.after == after)


def _longest_path(successors: list[tuple[int, ...]]) -> tuple[int, int | None]:
    """Return the length of the longest path, and a state on a circle if there is one."""
    lengths: list[int | None] = [None] * len(successors)
    entered = bytearray(len(successors))
    for first in range(len(successors)):
        stack = [first]
        while stack:
            number = stack[-1]
            if lengths[number] is not None:
                stack.pop()
                continue
            unknown = [each for each in successors[number] if lengths[each] is None]
            if not unknown:
                lengths[number] = max((1 + (lengths[each] or 0) for each in successors[number]), default=0)
                stack.pop()
            elif entered[number]:
                return 0, number
            else:
                entered[number] = 1
                stack.extend(unknown)
    return max(length or 0 for length in lengths), None
