"""Checks the open page for accessibility."""

from importlib.resources import files
from typing import Any

from libs.testbed.browser import Page


async def find_serious_violations(page: Page) -> dict[str, list[str]]:
    """The elements that break a rule, by rule; only what axe calls serious or critical."""
    axe = (files("axe_core_python") / "axe.min.js").read_text()
    await page.evaluate(f"{axe}; 0")
    found: Any = await page.evaluate("axe.run().then((result) => result.violations)")
    return {
        each["id"]: [node["html"] for node in each["nodes"][:3]]
        for each in found
        if each["impact"] in ("serious", "critical")
    }
