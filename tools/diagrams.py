"""Draw the diagrams of the documentation: `python tools/diagrams.py` writes docs/assets/diagrams/*.svg.

Colours are CSS variables: on the site, docs/assets/site.css defines them, and a standalone file defines its
own for light and dark themes. A test compares the files with the output of this script.
"""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "assets" / "diagrams"

LIGHT = {
    "ink": "#1f2933",
    "soft": "#5c6b7a",
    "line": "#7b8794",
    "box": "#f3f6fa",
    "group": "#fbfcfe",
    "a": "#dbe8f8",
    "b": "#fbe3da",
    "c": "#dff1e2",
    "d": "#f6ecc9",
}
DARK = {
    "ink": "#e4e9f0",
    "soft": "#a3b0bf",
    "line": "#8493a5",
    "box": "#2a3444",
    "group": "#222b39",
    "a": "#2b4566",
    "b": "#5e3a30",
    "c": "#2c5038",
    "d": "#57491f",
}
FONT = "system-ui, sans-serif"


@dataclass
class Drawing:
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def box(
        self, x: int, y: int, width: int, height: int, kind: str = "box", *, dashed: bool = False
    ) -> None:
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="var(--ov-{kind})"'
            f' stroke="var(--ov-line)"{dashes}/>'
        )

    def text(
        self,
        x: int,
        y: int,
        content: str,
        *,
        size: int = 13,
        soft: bool = False,
        bold: bool = False,
        anchor: str = "start",
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" fill="var(--ov-{"soft" if soft else "ink"})"'
            f' text-anchor="{anchor}" font-family="{FONT}"{weight}>{escape(content)}</text>'
        )

    def card(self, x: int, y: int, width: int, title: str, *lines: str, kind: str = "box") -> None:
        """Draw a box with a title and lines of text."""
        self.box(x, y, width, 26 + 17 * len(lines), kind)
        self.text(x + 10, y + 18, title, bold=True)
        for number, line in enumerate(lines, 1):
            self.text(x + 10, y + 18 + 17 * number, line, size=12, soft=True)

    def arrow(self, *points: tuple[int, int], label: str = "", above: int = 6) -> None:
        path = " L".join(f"{x} {y}" for x, y in points)
        self.parts.append(
            f'<path d="M{path}" fill="none" stroke="var(--ov-line)" stroke-width="1.5"'
            ' marker-end="url(#head)"/>'
        )
        if label:
            (x1, y1), (x2, y2) = points[:2]
            self.text((x1 + x2) // 2, (y1 + y2) // 2 - above, label, size=12, soft=True, anchor="middle")

    def line(self, *points: tuple[int, int]) -> None:
        path = " L".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path d="M{path}" fill="none" stroke="var(--ov-line)" stroke-width="1.5"/>')

    def svg(self) -> str:
        own = (
            _variables(":root", LIGHT)
            + f"@media (prefers-color-scheme: dark) {{ {_variables(':root', DARK)} }}"
        )
        head = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
            ' orient="auto">'
            '<path d="M0 0 L8 4 L0 8 z" fill="var(--ov-line)"/></marker>'
        )
        size = f'viewBox="0 0 {self.width} {self.height}"'
        return "\n".join(
            (
                f'<svg class="diagram" xmlns="http://www.w3.org/2000/svg" {size}>',
                f"<style>{own}</style>",
                f"<defs>{head}</defs>",
                *self.parts,
                "</svg>\n",
            )
        )


def _variables(selector: str, colours: dict[str, str]) -> str:
    return selector + " { " + " ".join(f"--ov-{name}: {value};" for name, value in colours.items()) + " }"


def processes() -> Drawing:
    d = Drawing(860, 330)
    d.card(10, 44, 120, "clients", "curl, SDKs,", "browsers", kind="d")
    d.card(10, 158, 130, "prompting", "template, tokenizer", kind="c")
    d.card(10, 232, 130, "check_process", "tries to compile", "a grammar in time", kind="c")
    d.text(10, 322, "these two may be killed", size=12, soft=True)
    d.box(190, 20, 300, 290, "group", dashed=True)
    d.text(204, 44, "front end: asyncio, no torch", bold=True)
    d.card(206, 60, 268, "HTTP", "limits, keys, JSON, server-sent events", kind="a")
    d.card(206, 118, 268, "chat, intake, output", "text to ids, ids to text", kind="a")
    in_flight = ("per request: prompt, parameters,", "seed and the tokens so far")
    d.card(206, 176, 268, "Hub", *in_flight, kind="a")
    d.card(206, 250, 268, "EngineSupervisor", "starts, watches and replaces the engine", kind="a")
    d.box(590, 20, 260, 290, "group", dashed=True)
    d.text(604, 44, "engine: one thread, no asyncio", bold=True)
    d.card(606, 60, 228, "ModelRunner, kernels", "weights, KV, logits, tokens", kind="b")
    d.card(606, 118, 228, "Scheduler, KVManager", "sequences and blocks", kind="b")
    d.card(606, 176, 228, "EngineLoop", "receive messages,", "step, send outputs", kind="b")
    d.card(606, 250, 228, "HeartbeatWriter", "time limit of the next step", kind="b")
    d.arrow((130, 70), (204, 70))
    d.arrow((206, 92), (132, 92))
    d.arrow((206, 140), (142, 172))
    d.arrow((142, 188), (204, 156))
    d.arrow((206, 162), (142, 252))
    d.arrow((474, 192), (604, 192), label="requests")
    d.arrow((606, 216), (476, 216), label="tokens")
    d.text(540, 234, "unix socket", size=12, soft=True, anchor="middle")
    d.arrow((606, 272), (476, 272), label="shared memory")
    return d


def request() -> Drawing:
    d = Drawing(860, 430)
    d.text(10, 24, "front end", bold=True, soft=True)
    d.text(10, 162, "engine", bold=True, soft=True)
    d.text(10, 302, "worker", bold=True, soft=True)
    for y in (138, 278):
        d.parts.append(
            f'<path d="M10 {y} L850 {y}" stroke="var(--ov-line)" stroke-dasharray="3 5" fill="none"/>'
        )
    d.card(10, 40, 120, "http, openai", "body to task", "server/", kind="a")
    d.card(158, 40, 132, "chat", "task to prompt", "frontend/chat.py", kind="a")
    d.card(318, 40, 128, "Intake", "checks, ids, seed", "frontend/", kind="a")
    d.card(474, 40, 112, "Hub", "stores, sends", "frontend/", kind="a")
    d.card(614, 40, 106, "output", "ids to text", "frontend/", kind="a")
    d.card(748, 40, 102, "openai, http", "to events", "server/", kind="a")
    d.card(410, 178, 150, "Scheduler", "selects the batch", "schedule/", kind="b")
    d.card(200, 178, 170, "KVManager", "blocks, radix tree", "cache/", kind="b")
    d.card(690, 178, 160, "apply", "commit blocks, append", "token, end or continue", kind="b")
    d.card(200, 318, 170, "build_batch", "slices to rows", "runner/", kind="c")
    d.card(410, 318, 150, "forward", "all layers, one call", "models/, kernels/", kind="c")
    d.card(600, 318, 110, "logits", "of rows that", "are sampled", kind="c")
    d.card(740, 318, 110, "sampler", "noise from", "the seed", kind="c")
    for start, end in ((130, 156), (290, 316), (446, 472), (720, 746)):
        d.arrow((start, 70), (end, 70))
    d.arrow((500, 100), (485, 176))
    d.text(382, 128, "GenerateRequest", size=12, soft=True)
    d.arrow((410, 200), (372, 200))
    d.arrow((370, 222), (408, 222))
    d.arrow((455, 238), (300, 316))
    d.text(250, 270, "StepPlan", size=12, soft=True)
    d.arrow((370, 348), (408, 348))
    d.arrow((560, 348), (598, 348))
    d.arrow((710, 348), (738, 348))
    d.arrow((795, 318), (780, 240))
    d.text(700, 270, "StepResult", size=12, soft=True)
    d.arrow((690, 208), (562, 208), label="next step")
    d.arrow((740, 178), (560, 102))
    d.text(650, 128, "tokens", size=12, soft=True)
    d.arrow((586, 70), (612, 70))
    d.text(
        10,
        418,
        "Engine steps repeat until the answer ends; each step serves all running sequences.",
        size=12,
        soft=True,
    )
    return d


def blocks() -> Drawing:
    d = Drawing(860, 400)
    d.text(10, 24, "prefix tree (one root per salt)", bold=True)
    d.box(250, 36, 80, 26)
    d.text(290, 54, "root", anchor="middle")
    d.box(120, 96, 150, 30, "c")
    d.text(195, 116, "system prompt: 4, 9", anchor="middle", size=12)
    d.box(340, 96, 130, 30, "d")
    d.text(405, 116, "old chat: 2, 7", anchor="middle", size=12)
    d.box(30, 160, 130, 30, "c")
    d.text(95, 180, "question A: 5", anchor="middle", size=12)
    d.box(230, 160, 130, 30, "c")
    d.text(295, 180, "question B: 11", anchor="middle", size=12)
    for start, end in (
        ((270, 62), (200, 94)),
        ((310, 62), (400, 94)),
        ((170, 126), (100, 158)),
        ((220, 126), (290, 158)),
    ):
        d.arrow(start, end)
    d.text(520, 60, "in use by a running sequence", size=12, soft=True)
    d.box(496, 48, 16, 16, "c")
    d.text(520, 86, "idle: kept for reuse, evicted oldest first", size=12, soft=True)
    d.box(496, 74, 16, 16, "d")
    d.text(520, 112, "private: partial, or not computed yet", size=12, soft=True)
    d.box(496, 100, 16, 16, "b")
    d.text(520, 138, "free", size=12, soft=True)
    d.box(496, 126, 16, 16, "group")
    d.text(10, 236, "two sequences with their block tables", bold=True)
    for row, (name, table) in enumerate((("A", (4, 9, 5, 6)), ("B", (4, 9, 11, 8, 3)))):
        y = 250 + row * 42
        d.text(14, y + 20, name, bold=True)
        for column, block in enumerate(table):
            d.box(40 + column * 66, y, 60, 30, "b" if block in (6, 8, 3) else "c")
            d.text(70 + column * 66, y + 20, f"block {block}", anchor="middle", size=12)
    d.text(400, 270, "shared blocks come first: they are in the tree, computed once;", size=12, soft=True)
    d.text(400, 288, "then private blocks, which join the tree when they are full", size=12, soft=True)
    d.text(10, 356, "memory", bold=True)
    colours = {4: "c", 9: "c", 5: "c", 11: "c", 2: "d", 7: "d", 6: "b", 8: "b", 3: "b"}
    for block in range(14):
        d.box(76 + block * 55, 338, 50, 30, colours.get(block, "group"))
        d.text(101 + block * 55, 358, str(block), anchor="middle", size=12)
    d.text(
        76,
        390,
        "Every block is free, in the tree, or private to one sequence. Blocks of a table may be scattered.",
        size=12,
        soft=True,
    )
    return d


def tiles() -> Drawing:
    d = Drawing(860, 400)
    d.text(10, 24, "packed weights (bfloat16)", bold=True)
    d.text(10, 44, "a column block has 32 columns and is read sequentially", size=12, soft=True)
    for block in range(3):
        for step in range(4):
            x, y = 10 + block * 110, 60 + step * 48
            for half in range(2):
                d.box(x + half * 48, y, 46, 44, "a" if (block, step) != (0, 0) else "b")
        d.text(57 + block * 110, 270, f"column block {block}", anchor="middle", size=12, soft=True)
    d.text(352, 88, "k 0..31", size=12, soft=True)
    d.text(352, 136, "k 32..63", size=12, soft=True)
    d.text(352, 184, "...", size=12, soft=True)
    d.text(10, 300, "one step: two tiles of 1 KB,", size=12, soft=True)
    d.text(10, 317, "16 pairs of k x 16 columns each", size=12, soft=True)
    d.text(460, 24, "the inner loop (AMX)", bold=True)
    d.text(460, 44, "16 rows x 32 columns, 32 k at a time", size=12, soft=True)
    d.box(630, 64, 90, 62, "b")
    d.box(724, 64, 90, 62, "b")
    d.text(675, 92, "left", anchor="middle", size=12)
    d.text(769, 92, "right", anchor="middle", size=12)
    d.text(722, 144, "weights: both are loaded into tile 2", anchor="middle", size=12, soft=True)
    d.box(500, 166, 110, 70, "d")
    d.text(555, 198, "tile 0", anchor="middle", size=12)
    d.text(555, 216, "x, 16 rows", anchor="middle", size=12, soft=True)
    d.box(630, 166, 90, 70, "c")
    d.box(724, 166, 90, 70, "c")
    d.text(675, 198, "tile 4", anchor="middle", size=12)
    d.text(769, 198, "tile 5", anchor="middle", size=12)
    d.text(722, 254, "sums, float32", anchor="middle", size=12, soft=True)
    d.card(
        460,
        284,
        390,
        "reproducible products",
        "Each element is summed over k from 0 upwards, with",
        "the same instructions for 1 row and for 512. More",
        "rows mean more groups of 16, never another order.",
    )
    d.card(10, 336, 400, "why packed", "A tile load reads 16 adjacent lines of 64 bytes.")
    return d


def files() -> dict[str, str]:
    drawings = {"processes": processes, "request": request, "blocks": blocks, "tiles": tiles}
    return {f"{name}.svg": draw().svg() for name, draw in drawings.items()}


if __name__ == "__main__":
    for name, svg in files().items():
        (FOLDER / name).write_text(svg)
        print(f"docs/assets/diagrams/{name}")
