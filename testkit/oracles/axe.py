"""axe-core in a page: the findings about accessibility that a person must act on."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from playwright.sync_api import Page

_RUN = """async () => (await axe.run(document, { resultTypes: ['violations'] })).violations
  .filter((found) => ['serious', 'critical'].includes(found.impact))
  .flatMap((found) => found.nodes.map((node) => `${found.impact} ${found.id}: ${node.target.join(' ')}: ${node.failureSummary}`))"""


@cache
def _script() -> str:
    return (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


def serious_findings(page: Page) -> list[str]:
    """Return the serious and critical findings on the page as it is."""
    # Evaluated, not added as an element: the page's content security policy forbids foreign scripts.
    page.evaluate(f"() => {{ {_script()}\n }}")
    return list(page.evaluate(_RUN))
