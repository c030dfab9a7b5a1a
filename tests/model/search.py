"""Searches all states of a model, breadth first, and describes a violation as a list of steps."""

from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from itertools import count, islice
from typing import Generic, TypeVar, cast

import msgspec

StateT = TypeVar("StateT")


def number_keys(build_key: Callable[..., Hashable]) -> Callable[..., int]:
    """Return a number for each key: it is cheaper to compare. Most steps change few parts of a state."""
    numbers = defaultdict[Hashable, int](count().__next__)
    number = lru_cache(1 << 14)(lambda *arguments: numbers[build_key(*arguments)])
    return cast("Callable[..., int]", number)


class Step(msgspec.Struct, Generic[StateT], frozen=True, gc=False):
    """One possible next step of a state."""

    text: str
    after: StateT
    is_progress: bool  # the parts take it by themselves; otherwise a fault or a change of the cluster


class Model(msgspec.Struct, Generic[StateT], frozen=True, kw_only=True):
    """A start state, the possible steps, and what must hold."""

    start: StateT
    list_steps: Callable[[StateT], Iterator[Step[StateT]]]  # in the same order each time
    build_key: Callable[[StateT], Hashable]  # of states with equal keys, the search follows one
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
        self._numbers: dict[Hashable, int] = {model.build_key(model.start): 0}
        self._parents = array("L", [0])
        self._choices = array("H", [0])  # by state number: which step of its parent leads to it
        self._progress = _SuccessorTable()
        self._waiting = deque([model.start])
        self._counterexample: Counterexample | None = None

    def run(self) -> SearchResult:
        model = self._model
        if violation := model.find_violation(model.start):
            return self._result(self._describe(0, violation))
        while self._waiting:
            self._visit(self._waiting.popleft())
            if self._counterexample is not None:
                return self._result(self._counterexample)
        settling_steps, endless = _find_longest_path(self._progress)
        if endless is not None:
            return self._result(self._describe(endless, "the steps of progress never end"))
        return self._result(None, settling_steps)

    def _visit(self, state: StateT) -> None:
        """Queue the states after this one, and record the first that must not exist."""
        number = len(self._progress)  # states leave the queue in the order of their numbers
        progress = []
        for choice, step in enumerate(self._model.list_steps(state)):
            found = self._numbers.setdefault(self._model.build_key(step.after), len(self._numbers))
            if found == len(self._parents):
                self._add(number, choice, step.after)
            if step.is_progress:
                progress.append(found)
        self._progress.append(progress)
        if not progress:
            self._record(number, self._model.find_unfinished(state))

    def _add(self, parent: int, choice: int, state: StateT) -> None:
        self._parents.append(parent)
        self._choices.append(choice)
        self._waiting.append(state)
        self._record(len(self._parents) - 1, self._model.find_violation(state))

    def _record(self, number: int, violation: str) -> None:
        if violation and self._counterexample is None:
            self._counterexample = self._describe(number, violation)

    def _result(self, counterexample: Counterexample | None, settling_steps: int = 0) -> SearchResult:
        return SearchResult(
            states=len(self._parents),
            depth=len(self._list_choices(len(self._parents) - 1)),
            settling_steps=settling_steps,
            counterexample=counterexample,
        )

    def _describe(self, number: int, violation: str) -> Counterexample:
        """Take the steps from the start to this state again, and name them."""
        texts, state = [], self._model.start
        for choice in self._list_choices(number):
            step = next(islice(self._model.list_steps(state), choice, None))
            texts.append(step.text)
            state = step.after
        return Counterexample(violation, tuple(texts))

    def _list_choices(self, number: int) -> list[int]:
        """Return which step each state on the way to this one takes."""
        choices = []
        while number != 0:
            choices.append(self._choices[number])
            number = self._parents[number]
        return choices[::-1]


class _SuccessorTable:
    """By state number, the states after its steps of progress; 8 bytes for each, as there are millions."""

    def __init__(self) -> None:
        self._successors = array("L")
        self._ends = array("L")

    def append(self, successors: list[int]) -> None:
        """Add those of the next state number."""
        self._successors.extend(successors)
        self._ends.append(len(self._successors))

    def __getitem__(self, number: int) -> Sequence[int]:
        return self._successors[self._ends[number - 1] if number else 0 : self._ends[number]]

    def __len__(self) -> int:
        return len(self._ends)


def _find_longest_path(successors: _SuccessorTable) -> tuple[int, int | None]:
    """Return the length of the longest path, and a state on a circle if there is one."""
    lengths = array("l", [-1]) * len(successors)
    entered = bytearray(len(successors))
    for first in range(len(successors)):
        stack = [first]
        while stack:
            number = stack[-1]
            if lengths[number] >= 0:
                stack.pop()
                continue
            unknown = [each for each in successors[number] if lengths[each] < 0]
            if not unknown:
                lengths[number] = max((1 + lengths[each] for each in successors[number]), default=0)
                stack.pop()
            elif entered[number]:
                return 0, number
            else:
                entered[number] = 1
                stack.extend(unknown)
    return max(lengths), None
