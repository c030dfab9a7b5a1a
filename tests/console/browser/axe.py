"""Checks the open page for accessibility."""

from importlib.resources import files
from typing import Any, Final

from tests.console.browser.chromium import Page

# This version of axe ends the rule of contrast at a colour in oklab(), which a canvas converts.
_CONVERT_COLOURS: Final = """
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const original = window.getComputedStyle;
  const convert = (value) => {
    if (typeof value !== "string" || !value.startsWith("oklab(")) return value;
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = value;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return `rgba(${red}, ${green}, ${blue}, ${alpha / 255})`;
  };
  window.getComputedStyle = (...of) => new Proxy(original(...of), {
    get(style, name) {
      const value = style[name];
      return typeof value === "function" ? (...given) => convert(value.apply(style, given)) : convert(value);
    },
  });
"""


async def find_serious_violations(page: Page) -> dict[str, list[str]]:
    """The elements that break a rule, by rule; only what axe calls serious or critical.

    In dark colours, only the rule of colours is checked once more.
    """
    axe = (files("axe_core_python") / "axe.min.js").read_text()
    await page.evaluate(f"if (!window.axe) {{ {_CONVERT_COLOURS} {axe} }}; 0")
    await page.set_colours("light")
    violations = await _run(page)
    await page.set_colours("dark")
    return violations | await _run(page, "{runOnly: ['color-contrast']}")


async def _run(page: Page, options: str = "") -> dict[str, list[str]]:
    found: Any = await page.evaluate(f"axe.run({options})")
    ended = [each["message"] for each in found["incomplete"] if "message" in each]
    assert not ended, "axe ended a rule"
    return {
        each["id"]: [node["html"] for node in each["nodes"][:3]]
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    }
