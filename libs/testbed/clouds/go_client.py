"""Runs clients that are made of the clouds' own Go modules."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

from libs.testbed.control_plane.build import GoProgram, build_program

ReportT = TypeVar("ReportT")


async def run_go_client(program: GoProgram, query: object, report: type[ReportT]) -> ReportT:
    """Return the report about this query. Builds the program if needed. Raises RuntimeError if it fails."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        await build_program(program), stdin=pipe, stdout=pipe, stderr=pipe
    )
    output, errors = await process.communicate(msgspec.json.encode(query))
    if process.returncode != 0:
        raise RuntimeError(f"{program.name} ended with {process.returncode}: {errors.decode()}")
    return msgspec.json.decode(output, type=report)
