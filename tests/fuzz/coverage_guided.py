"""Runs one target under atheris: `python -m tests.fuzz.coverage_guided NAME [flags of libFuzzer] FOLDER`."""

import logging
import sys
from random import Random

import atheris

with atheris.instrument_imports(include=["libs", "services", "msgspec", "yaml", "aiohttp", "h2", "hpack"]):
    from tests.fuzz.mutations import mutate
    from tests.fuzz.table import TARGETS, seeds_of


def main(arguments: list[str]) -> None:
    """Search until a limit of libFuzzer's flags; an input that breaks the target is written to a file."""
    name, *flags = arguments
    target, seeds = TARGETS[name], seeds_of(name)
    logging.disable(logging.CRITICAL)  # progress lines are enough

    def mutate_structure(data: bytes, max_size: int, seed: int) -> bytes:
        """Change the structure half of the time; otherwise let libFuzzer change bytes."""
        chance = Random(seed)
        if chance.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        return mutate(data, chance.choice(seeds), chance, max_size)

    atheris.Setup([sys.argv[0], *flags], target.fuzz, custom_mutator=mutate_structure)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
