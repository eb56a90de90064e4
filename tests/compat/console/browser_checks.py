"""Checks of a page in a browser: its contrast, its width, and a picture of it."""

import os
from pathlib import Path

from tests.compat.server_process import ROOT
from tests.patience import until

CHROMIUM = Path("/usr/bin/chromium")
OVERFLOW = """() => [document.documentElement, ...document.querySelectorAll(".scroll")]
  .map((each) => each.scrollWidth - each.clientWidth)"""
# The contrast of each visible text with its background, by WCAG 2.2 (1.4.3).
CONTRAST = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (c) => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map((c) => linear(c / 255))
    .reduce((sum, c, at) => sum + c * [.2126, .7152, .0722][at], 0);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] === 1) return c; } return [255, 255, 255]; };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const text = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.textContent.trim()).join("");
    if (!text || !e.checkVisibility() || e.closest("svg, .uplot, .skip")) continue;
    const style = getComputedStyle(e), [a, b] = [light(rgb(style.color)), light(behind(e))].sort((x, y) => y - x);
    const big = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    const ratio = (a + .05) / (b + .05);
    if (ratio < (big ? 3 : 4.5)) found.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return found;
}"""


def picture(page, name, points=0):
    """Save a screenshot with few colours, so that it is small, if the environment asks for pictures.

    Wait until the first chart has some points.
    """
    if where := os.environ.get("FLAKELOG_PICTURES"):
        from PIL import Image

        if points:
            until(lambda: page.evaluate("document.querySelector('.chart').points[0].length") >= points)
        file = ROOT / where / f"console-{name}.png"
        page.screenshot(path=file)
        Image.open(file).convert("RGB").quantize(96).save(file, optimize=True)
