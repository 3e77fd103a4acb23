"""Draw the diagrams of docs/explanation as SVG files in docs/images.

    python tools/drawings.py

The drawings have a background of their own, so that they can be read in light and in dark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
PAPER, INK, GRAY, LINE = "#fbfaf7", "#1d2733", "#5c6773", "#8a94a0"
BLUE, ORANGE, GREEN, RED = "#2f6db5", "#c9681a", "#2f8557", "#b3372f"


@dataclass
class Drawing:
    """An SVG image that is put together from boxes, texts and arrows."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, color: str = INK, fill: str = "none") -> None:
        """Add a rectangle with round corners."""
        shape = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"'
        self.parts.append(f'<rect {shape} fill="{fill}" stroke="{color}" stroke-width="1.5"/>')

    def text(
        self, x: float, y: float, text: str, color: str = INK, size: int = 14, anchor: str = "middle", bold: bool = False
    ) -> None:
        """Add a line of text."""
        weight = ' font-weight="600"' if bold else ""
        style = f'fill="{color}" font-size="{size}" text-anchor="{anchor}"{weight}'
        self.parts.append(f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>')

    def arrow(self, *points: tuple[float, float], color: str = GRAY) -> None:
        """Add a line through points with a head at its end."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        head = f'marker-end="url(#head{color[1:]})"'
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5" {head}/>')

    def labeled(self, x: float, y: float, width: float, height: float, *lines: str, color: str = INK, fill: str = "none") -> None:
        """Add a box with lines of text in its middle."""
        self.box(x, y, width, height, color, fill)
        top = y + height / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 18 * number, line, color)

    def bar(self, x: float, y: float, width: float, share: float, color: str) -> None:
        """Add a bar that is filled up to a share of its width."""
        self.box(x, y, width, 12, LINE)
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width * share:g}" height="12" rx="6" fill="{color}"/>')

    def render(self) -> str:
        """Return the SVG file."""
        shape = 'viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" orient="auto"'
        colors = (INK, GRAY, BLUE, ORANGE, GREEN, RED)
        heads = "".join(f'<marker id="head{c[1:]}" {shape}><path d="M0,0 L10,5 L0,10 z" fill="{c}"/></marker>' for c in colors)
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" role="img">'
        ground = f'<rect width="{self.width}" height="{self.height}" rx="10" fill="{PAPER}"/>'
        return "\n".join([start, f"<title>{escape(self.title)}</title>", f"<defs>{heads}</defs>", ground, *self.parts, "</svg>\n"])


def draw_mixture() -> Drawing:
    """One image, three tasks: the prompts are mixed by the task probabilities and go into every block."""
    d = Drawing(760, 330, "The prompts of all tasks are mixed by the image's task probabilities, and go into the frozen network")
    tasks = (("task 1", "φ₁", 0.1, BLUE), ("task 2", "φ₂", 0.7, ORANGE), ("task 3", "φ₃", 0.2, GREEN))
    d.text(105, 30, "a prompt of each task", GRAY)
    d.text(320, 30, "task probabilities of the image", GRAY)
    for number, (name, symbol, weight, color) in enumerate(tasks):
        y = 50 + 62 * number
        d.labeled(30, y, 150, 42, f"{name}: {symbol}", color=color)
        d.bar(235, y + 15, 100, weight, color)
        d.text(345, y + 26, f"{weight:g}", color, anchor="start", bold=True)
        d.arrow((380, y + 21), (430, 133), color=color)
    d.labeled(440, 96, 140, 74, "mixture φ(x) =", "0.1 φ₁ + 0.7 φ₂", "+ 0.2 φ₃", fill="#ffffff")
    d.arrow((510, 172), (510, 222))
    d.labeled(30, 226, 120, 60, "image x")
    d.arrow((150, 256), (205, 256))
    d.labeled(210, 226, 350, 60, "frozen vision transformer", "prompt rows in the attention of each block", fill="#eef1f5")
    d.arrow((560, 256), (610, 256))
    d.labeled(615, 226, 120, 60, "feature f(x)", "to classify")
    d.text(380, 314, "Nothing is selected: a wrong guess of the task costs a share of the prompt, not all of it.", GRAY)
    return d


def draw_cycles() -> Drawing:
    """The class probabilities of each pass give the weights of the next one."""
    d = Drawing(760, 300, "Class probabilities of the first pass, added up by task, are the prompt weights of the second")
    for number, (title, prompt) in enumerate((("pass 1", "prompt of task 1"), ("pass 2", "weighted mixture"))):
        x = 30 + 390 * number
        d.text(x + 160, 32, title, bold=True)
        d.labeled(x, 50, 150, 44, prompt, color=BLUE if number == 0 else ORANGE)
        d.arrow((x + 150, 72), (x + 175, 72))
        d.labeled(x + 180, 50, 140, 44, "frozen network", fill="#eef1f5")
        d.arrow((x + 250, 94), (x + 250, 116))
        d.text(x + 250, 134, "class probabilities")
        shares = ((0.15, 0.1), (0.35, 0.2), (0.12, 0.08)) if number == 0 else ((0.05, 0.02), (0.8, 0.06), (0.04, 0.03))
        for task, (pair, color) in enumerate(zip(shares, (BLUE, ORANGE, GREEN), strict=True)):
            y = 148 + 34 * task
            for row, share in enumerate(pair):
                d.bar(x + 150, y + 14 * row, 70, share, color)
            d.text(x + 232, y + 18, f"task {task + 1}: {sum(pair):.2f}", color, anchor="start", size=13)
    d.arrow((172, 195), (130, 195), (130, 270), (400, 270), (400, 110), (430, 110), (430, 98), color=ORANGE)
    d.text(270, 288, "added up by task: the weights of the next pass", ORANGE)
    d.text(640, 278, "the answer", bold=True)
    return d


def draw_ridge() -> Drawing:
    """Images become sums, sums become weights; a lesson only adds."""
    d = Drawing(760, 320, "Each lesson adds sums over its images to those before; the weights follow from the sums in closed form")
    for number, (name, color) in enumerate((("lesson 1", BLUE), ("lesson 2", ORANGE), ("lesson 3", GREEN))):
        y = 46 + 66 * number
        d.labeled(24, y, 130, 44, name, "images", color=color)
        d.arrow((154, y + 22), (186, y + 22), color=color)
        d.labeled(190, y, 150, 44, "features h(x)", color=color)
        d.arrow((340, y + 22), (392, 134), color=color)
    d.labeled(398, 76, 170, 116, "sums", "G = Σ h hᵀ", "Q = Σ h yᵀ", "n = number of images", fill="#ffffff")
    d.text(366, 92, "+", bold=True, size=18)
    d.arrow((568, 134), (600, 134))
    d.labeled(604, 92, 140, 84, "weights", "W = (G + λI)⁻¹ Q", fill="#eef1f5")
    d.text(380, 262, "A sum does not depend on the order of its terms: three lessons give the W of all images at once.", GRAY)
    d.text(380, 286, "What would be forgotten by training a head further is still in the sums.", GRAY)
    return d


def draw_leak() -> Drawing:
    """What the reshape does: prompts of neighbors in the batch, and a batch holds one task."""
    d = Drawing(
        760,
        380,
        "With the axes mixed up, an image gets prompts of its neighbors in the batch, which are of its own task",
    )
    for panel, (title, color) in enumerate((("here: axes stay apart", GREEN), ("released code: reshaped", RED))):
        x = 30 + 375 * panel
        d.text(x + 160, 32, title, color, bold=True)
        d.text(x + 45, 58, "prompts, made", GRAY, 12)
        d.text(x + 45, 73, "for image", GRAY, 12)
        d.text(x + 280, 58, "keys, values", GRAY, 12)
        d.text(x + 280, 73, "used by image", GRAY, 12)
        for image in range(4):
            y = 86 + 50 * image
            d.labeled(x, y, 90, 34, f"{image}: k, v")
            d.labeled(x + 235, y, 90, 34, str(image))
        for image in range(4):
            target = 103 + 50 * image
            sources = (image, image) if panel == 0 else ((2 * image) % 4, (2 * image + 1) % 4)
            for row, source in enumerate(sources):
                made_as = row if panel == 0 else image // 2  # rows made as keys come first, those made as values last
                d.arrow((x + 92, 98 + 50 * source + 10 * made_as), (x + 231, target - 5 + 10 * row), color=color)
    d.text(380, 314, "A test batch of the released code holds one task: the neighbors' prompts tell which one it is.", GRAY)
    d.text(380, 336, "Alone, or in a mixed batch, the same image gets another answer.", GRAY)
    d.text(380, 358, "k, v: rows beside keys and values. Drawn for a batch of four and one layer.", GRAY, 12)
    return d


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "mixture.svg": draw_mixture,
    "cycles.svg": draw_cycles,
    "ridge.svg": draw_ridge,
    "leak.svg": draw_leak,
}


def main() -> None:
    """Write all drawings."""
    for name, draw in DRAWINGS.items():
        (FOLDER / name).write_text(draw().render(), encoding="utf-8")


if __name__ == "__main__":
    main()
