"""The pictures of README and of the guides, drawn by code.

    python -m scripts.pictures [DEMO]

Without DEMO it draws the pictures that need no model. DEMO is what `make demo` made: of its models
it draws the matrices, and with Chromium the explorer at work. Everything goes to docs/pictures: SVG
that follows the reader's light or dark setting, and a PNG of the explorer for each.
"""

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from arch.storage.runs import without_seed
from eval.drawing.figures import write_chart
from eval.drawing.plots import LIGHT, Chart, open_altair
from eval.sites.slices import Slice

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
SENTENCE = "Once upon a time there was a little dog."
WORDS = ["Once", "·upon", "·a", "·time", "·there", "·was", "·a", "·dog"]
INK, MUTED, LINE, CARD = (LIGHT[name] for name in ("ink", "muted", "line", "card"))
BLUE, ORANGE, GREEN = (LIGHT[name] for name in ("c0", "c1", "c2"))
AT_8 = 3
"""The place of eight positions later among the distances of E6."""


@dataclass
class Scene:
    """A drawing of boxes, words and arrows, in pixels from the upper left corner."""

    width: int
    height: int
    boxes: list[dict[str, Any]] = field(default_factory=list)
    words: list[dict[str, Any]] = field(default_factory=list)
    arrows: list[dict[str, Any]] = field(default_factory=list)

    def box(
        self, x: float, y: float, w: float, h: float, text: str = "", fill: str = CARD,
        strength: float = 1.0, stroke: str = MUTED, dashed: bool = False,
    ) -> None:  # fmt: skip
        """A rectangle, with a word in the middle."""
        self.boxes.append({"x": x, "y": y, "x2": x + w, "y2": y + h, "fill": fill, "stroke": stroke,
                           "strength": strength, "dash": [4, 3] if dashed else [1, 0]})  # fmt: skip
        if text:
            self.word(x + w / 2, y + h / 2, text)

    def word(
        self, x: float, y: float, text: str, colour: str = INK, align: str = "center",
        size: int = 12, bold: bool = False,
    ) -> None:  # fmt: skip
        """A line of text; x is its middle, or the end that `align` names."""
        self.words.append({"x": x, "y": y, "text": text, "colour": colour, "align": align,
                           "size": size, "weight": "bold" if bold else "normal"})  # fmt: skip

    def arrow(
        self, x: float, y: float, x2: float, y2: float, colour: str = MUTED, head: bool = True
    ) -> None:
        """A line from one point to another, upright or level, with a head at its end."""
        angle = {(0, 1): 180, (0, -1): 0, (1, 0): 90, (-1, 0): 270}
        turned = angle.get((int(np.sign(x2 - x)), int(np.sign(y2 - y))), 90)
        self.arrows.append({"x": x, "y": y, "x2": x2, "y2": y2, "colour": colour, "angle": turned,
                            "head": head})  # fmt: skip

    def chart(self) -> Chart:
        """The drawing as one chart."""
        alt = open_altair()
        axes = {
            "x": alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, self.width], nice=False)),
            "y": alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[self.height, 0], nice=False)),
        }
        ends = {"x2": "x2:Q", "y2": "y2:Q"}
        layers = []
        for dash in ([1, 0], [4, 3]):
            boxes = [box for box in self.boxes if box["dash"] == dash]
            if boxes:
                drawn = alt.Chart(alt.Data(values=boxes)).mark_rect(
                    cornerRadius=4, strokeDash=dash, aria=False
                )
                layers.append(drawn.encode(
                    **axes, **ends, fill=alt.Fill("fill:N", scale=None),
                    stroke=alt.Stroke("stroke:N", scale=None),
                    fillOpacity=alt.FillOpacity("strength:Q", scale=None),
                ))  # fmt: skip
        if self.arrows:
            colour = alt.Color("colour:N", scale=None)
            data = alt.Data(values=self.arrows)
            layers.append(alt.Chart(data).mark_rule(aria=False).encode(
                **axes, **ends, color=colour))  # fmt: skip
            heads = alt.Data(values=[
                {**arrow, "x": arrow["x2"], "y": arrow["y2"]} for arrow in self.arrows
                if arrow["head"]
            ])  # fmt: skip
            layers.append(alt.Chart(heads).mark_point(
                shape="triangle", filled=True, size=55, opacity=1, aria=False
            ).encode(**axes, color=colour, angle=alt.Angle("angle:Q", scale=None)))  # fmt: skip
        for align, weight in sorted({(word["align"], word["weight"]) for word in self.words}):
            words = [w for w in self.words if (w["align"], w["weight"]) == (align, weight)]
            written = alt.Chart(alt.Data(values=words)).mark_text(
                align=align, baseline="middle", fontWeight=weight, aria=False
            )
            layers.append(written.encode(
                **axes, text="text:N", color=alt.Color("colour:N", scale=None),
                size=alt.Size("size:Q", scale=None),
            ))  # fmt: skip
        return alt.layer(*layers).properties(width=self.width, height=self.height)


def draw_slices() -> Chart:
    """Which outputs three slices show: a strip of tokens with their outputs above."""
    scene, (w, gap, left) = Scene(720, 292), (62, 6, 150)
    texts = {"[:, 2:, :]": "the first two positions hidden",
             "[:, :3+4:, :]": "the token at position 3 hidden",
             "[:, :, :32]": "32 of 128 numbers of every output"}  # fmt: skip
    for row, (text, about) in enumerate(texts.items()):
        shown, top = Slice.parse(text), 12 + 94 * row
        scene.word(0, top + 16, text, align="left", size=13, bold=True)
        for line, part in enumerate(textwrap.wrap(about, 24)):
            scene.word(0, top + 34 + 14 * line, part, MUTED, "left", 11)
        positions = shown.positions(len(WORDS))
        fraction = shown.channels(128) / 128
        for i, word in enumerate(WORDS):
            x = left + 40 + i * (w + gap)
            if i in positions:
                scene.box(x, top + 30 * (1 - fraction), w, 30 * fraction, "", BLUE, 0.55, BLUE)
            scene.box(x, top, w, 30, "", CARD, 0, MUTED, dashed=i not in positions or fraction < 1)
            scene.arrow(x + w / 2, top + 48, x + w / 2, top + 35)
            scene.box(x, top + 50, w, 24, word, LINE, 0.6, LINE)
    return scene.chart()


def draw_sites() -> Chart:
    """One block with the sites where outputs are taken."""
    scene, y = Scene(760, 210), 120
    scene.arrow(6, y, 748, y, INK)
    scene.word(6, y - 14, "stream of the block before", MUTED, "left", 11)
    parts = (
        (150, "norm", "token mixer", "mixer", "key, rotated_key, value: inside attention"),
        (450, "norm", "channel mixer", "", ""),
    )
    for x, first, second, site, inside in parts:
        scene.arrow(x, y, x, 76, head=False)
        scene.arrow(x, 76, x + 18, 76)
        scene.box(x + 20, 60, 52, 32, first)
        scene.arrow(x + 72, 76, x + 90, 76)
        scene.box(x + 92, 60, 104, 32, second, BLUE, 0.15, BLUE)
        scene.arrow(x + 196, 76, x + 222, 76, head=False)
        scene.arrow(x + 222, 76, x + 222, y - 10)
        scene.box(x + 212, y - 10, 20, 20, "+")
        if site:
            scene.word(x + 226, 64, site, ORANGE, "left", 13, bold=True)
        if inside:
            scene.word(x + 20, 42, inside, ORANGE, "left", 12)
    for x, site, about in ((404, "stream", "between the two"), (716, "block", "after the block")):
        scene.arrow(x, y + 4, x, y + 26, ORANGE, head=False)
        scene.word(x, y + 38, site, ORANGE, size=13, bold=True)
        scene.word(x, y + 54, about, MUTED, size=11)
    scene.word(6, 196, "layer 0 is the embedding; final is the last block behind the final norm",
               MUTED, "left", 11)  # fmt: skip
    return scene.chart()


def draw_run() -> Chart:
    """The files of a run, and the model that each way of naming it means."""
    lines = [
        ("runs/flat/", "", INK), ("    config.yaml", "all settings", MUTED),
        ("    metrics.jsonl", "a row of figures for each logged step", MUTED),
        ("    checkpoints/", "for --resume auto", MUTED), ("    models/", "", INK),
        ("        step-000000/", "runs/flat@0", BLUE),
        ("        step-000400/", "runs/flat@400", BLUE),
        ("        step-001950/", "runs/flat: the last", BLUE),
        ("    best/", "runs/flat@best: the lowest validation loss (--save_best)", BLUE),
        ("    wandb/", "for wandb sync", MUTED),
    ]  # fmt: skip
    scene = Scene(640, 24 * len(lines) + 10)
    for row, (name, about, colour) in enumerate(lines):
        y, indent = 16 + 24 * row, len(name) - len(name.lstrip())
        scene.word(10 + 7 * indent, y, name.strip(), INK, "left", 13)
        if about:
            scene.arrow(240, y, 200, y, colour)
            scene.word(250, y, about, colour, "left", 12)
    return scene.chart()


def draw_held_out() -> Chart:
    """What the stories of a corpus are used for."""
    scene, (left, top, h) = Scene(720, 150), (10, 46, 36)
    train, prompts, background, fits = 330, 185, 38, 147
    scene.box(left, top, train, h, "training", LINE, 0.7)
    x = left + train
    for width, text, colour in ((prompts, "prompts", BLUE), (background, "", ORANGE),
                                (fits, "fits", GREEN)):  # fmt: skip
        scene.box(x, top, width, h, text, colour, 0.25, colour)
        x += width
    scene.word(left + train + prompts + background / 2, top + h + 14, "background", ORANGE)
    scene.word(left, top - 16, "stories that training reads", MUTED, "left")
    scene.word(left + train, top - 16, "held-out stories: eval loss reads all of them", MUTED,
               "left")  # fmt: skip
    about = (
        "prompts: the first half, at most 4,096 stories; background, from which searches learn "
        "their guesses: every eighth of the rest; fits: what is left"
    )
    for line, part in enumerate(textwrap.wrap(about, 110)):
        scene.word(left, top + h + 38 + 16 * line, part, MUTED, "left", 11)
    return scene.chart()


def draw_token_way() -> Chart:
    """The way of a token through a model, and what is asked on the way."""
    scene, y = Scene(760, 150), 54
    stations = [("“dog”", "text"), ("a token's id", "tokenizer"), 
                ("D numbers", "embedding: layer 0"),
                ("block 1", "layer 1"), ("…", ""), ("block n", "layer n"),
                ("head", "scores of all tokens")]  # fmt: skip
    widths = [62, 78, 104, 80, 36, 80, 74]
    x = 8.0
    for (text, about), width in zip(stations, widths, strict=True):
        block = text.startswith("block")
        scene.box(x, y - 18, width, 36, text, *((BLUE, 0.15, BLUE) if block else (LINE, 0.5, LINE)))
        scene.word(x + width / 2, y - 32, about, MUTED, size=11)
        if text != "head":
            scene.arrow(x + width + 2, y, x + width + 26, y)
        if block:
            scene.arrow(x + width + 14, y + 3, x + width + 14, y + 40, ORANGE)
        x += width + 30
    scene.word(500, y + 54, "outputs of one layer are captured", ORANGE, size=12)
    scene.arrow(380, y + 54, 84, y + 54, ORANGE, head=False)
    scene.arrow(84, y + 54, 84, y + 24, ORANGE)
    scene.word(230, y + 70, "inversion: which tokens made them?", ORANGE, size=12)
    return scene.chart()


def draw_descent() -> Chart:
    """Why descent misses: two unknown numbers, one equation, and tokens at whole numbers."""
    alt = open_altair()
    tokens = np.arange(-2, 3)

    def output(a: Any, b: Any) -> Any:
        return a + 0.7 * b + 0.23 * a * b

    target = output(1, -1)  # of the tokens 1 and -1
    a, path = np.array([1.3, 2.0]), []
    for _ in range(400):
        path.append({"a": float(a[0]), "b": float(a[1]), "order": len(path)})
        slope = np.array([1 + 0.23 * a[1], 0.7 + 0.23 * a[0]]) * (output(*a) - target)
        a = a - 0.03 * slope
    line = [{"a": float(x), "b": float((target - x) / (0.7 + 0.23 * x)), "order": x}
            for x in np.linspace(-1.4, 3.2, 80)]  # fmt: skip
    line = [point for point in line if abs(point["b"]) <= 2.4]
    dots = [{"a": int(x), "b": int(y), "what": "a pair of tokens"} for x in tokens for y in tokens]
    bare = alt.Axis(ticks=False, labels=False, grid=False, domain=False)
    x = alt.X(
        "a:Q", title="vector at the hidden position", axis=bare, scale=alt.Scale(domain=[-2.4, 4.2])
    )
    y = alt.Y(
        "b:Q", title="vector at the next position", axis=bare, scale=alt.Scale(domain=[-2.4, 2.4])
    )
    stop = path[-1]
    words = [{"a": stop["a"] + 0.15, "b": stop["b"] - 0.2, "text": "descent stops here"},
             {"a": 1.15, "b": -0.8, "text": "the tokens: search finds them"},
             {"a": 2.1, "b": -1.6, "text": "all pairs with these outputs"}]  # fmt: skip
    layers = [
        alt.Chart(alt.Data(values=dots)).mark_point(filled=True, size=30, color=MUTED, opacity=1)
        .encode(x=x, y=y),
        alt.Chart(alt.Data(values=line)).mark_line(color=BLUE).encode(x=x, y=y, order="order:Q"),
        alt.Chart(alt.Data(values=path)).mark_line(color=ORANGE, strokeDash=[4, 3])
        .encode(x=x, y=y, order="order:Q"),
        alt.Chart(alt.Data(values=[stop])).mark_point(filled=True, size=90, color=ORANGE,
                                                         opacity=1).encode(x=x, y=y),
        alt.Chart(alt.Data(values=[{"a": 1, "b": -1}]))
        .mark_point(size=160, color=GREEN, strokeWidth=3).encode(x=x, y=y),
        alt.Chart(alt.Data(values=words)).mark_text(align="left", fontSize=12)
        .encode(x=x, y=y, text="text:N"),
    ]  # fmt: skip
    return alt.layer(*layers).properties(width=560, height=300)


def draw_training() -> Chart:
    """Bits of one output eight positions later over training, from the rows of E6."""
    import pandas

    alt = open_altair()
    stored = pandas.read_parquet(ROOT / "docs/results/experiments/e6.parquet")["row"]
    names = {"flat": "flat masked mixer", "llama": "Llama"}
    points = [
        {"tokens": row["tokens_seen"] / 1e6, "model": names[without_seed(row["model"])],
         "bits": row["bits"]["noise 0.25 rms"]["alone"][AT_8]}
        for row in map(json.loads, stored)
        if row["kind"] == "bits" and row["site"] == "block" and row["step"] <= 3125
        and without_seed(row["model"]) in names
    ]  # fmt: skip
    x = alt.X("tokens:Q", title="training tokens, millions",
              scale=alt.Scale(type="symlog", constant=0.1),
              axis=alt.Axis(format=".1f",
                            values=[0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4]))  # fmt: skip
    title, series = "bits about the token", alt.Scale(range=[BLUE, ORANGE])
    base = alt.Chart(alt.Data(values=points)).encode(
        x=x, y=alt.Y("mean(bits):Q", title=title), color=alt.Color("model:N", title=None,
                                                                   scale=series))  # fmt: skip
    marks = [{"tokens": 0.75, "bits": 0.4, "text": "training hides the token ..."},
             {"tokens": 3.6, "bits": 6.7, "text": "... and brings it back"}]  # fmt: skip
    words = alt.Chart(alt.Data(values=marks)).mark_text(fontSize=12, align="center").encode(
        x=x, y=alt.Y("bits:Q", title=title), text="text:N")  # fmt: skip
    return alt.layer(base.mark_line(point=True), words).properties(width=560, height=240)


def draw_mixers(demo: Path) -> Chart:
    """A trained mixer's triangle beside attention on one sentence: the first block of each."""
    import torch

    from arch.mixers import CausalAttention
    from eval import open_model
    from eval.lenses.circuits import attention_pattern, triangles

    alt, panels = open_altair(), []
    titles = ("masked mixer: the same W for every text", "attention: a pattern of this text")
    for name, title in zip(("flat", "llama"), titles, strict=True):
        checkpoint = open_model(demo / name)
        tokens = checkpoint.tokenizer.encode(SENTENCE).ids
        pieces = [f"{i} {piece}" for i, piece in enumerate(checkpoint.pieces(tokens))]
        block: Any = checkpoint.model.blocks[0]
        mixer = block.token_mixer
        with torch.no_grad():
            if isinstance(mixer, CausalAttention):
                embedded = checkpoint.model.embedding(torch.tensor([tokens]))
                matrix = attention_pattern(mixer, block.norm_token(embedded))[0, 0]
            else:
                matrix = next(iter(triangles(mixer, len(tokens)).values()))
        scaled = matrix / matrix.abs().max()
        records = [{"read": pieces[j], "written": pieces[i], "weight": float(scaled[i, j])}
                   for i in range(len(pieces)) for j in range(i + 1)]  # fmt: skip
        labels: dict[str, Any] = {"sort": pieces, "axis": alt.Axis(labelFontSize=10, title=None)}
        drawn = alt.Chart(alt.Data(values=records)).mark_rect(aria=False).encode(
            x=alt.X("read:N", **labels), y=alt.Y("written:N", **labels),
            color=alt.Color("weight:Q", title="weight, of the largest", scale=alt.Scale(
                scheme="blueorange", reverse=True, domain=[-1, 1])),
        )  # fmt: skip
        panels.append(drawn.properties(width=250, height=250, title=title))
    return alt.hconcat(*panels, spacing=60)


def photograph_explorer(demo: Path) -> None:
    """The explorer after it recovered a sentence of which two tokens were hidden, by light."""
    from playwright.sync_api import expect, sync_playwright

    from eval.explore.questions import Library
    from eval.explore.server import Explorer, serve_beside

    library = Library([str(demo / "flat")], "toy", "cpu")
    with serve_beside(Explorer(library)) as port, sync_playwright() as playwright:
        program = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for light in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1000, "height": 900}, color_scheme=light)
            page.goto(f"http://127.0.0.1:{port}/")
            for token in (3, 4):
                page.locator("#tokens button").nth(token).click()
            expect(page.locator("#shown")).to_contain_text("2 of", timeout=60_000)
            page.click("#invert")
            expect(page.locator("#status")).to_contain_text("done", timeout=120_000)
            page.screenshot(path=PICTURES / f"explorer-{light}.png")


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws the pictures; 2 where there are no models of the demo."""
    parser = argparse.ArgumentParser(description="Draws the pictures of README and the guides.")
    parser.add_argument("demo", type=Path, nargs="?", help="what `make demo` made")
    demo: Path | None = parser.parse_args(arguments).demo
    drawn = {"slices": draw_slices, "sites": draw_sites, "run": draw_run,
             "held-out": draw_held_out, "token": draw_token_way, "descent": draw_descent,
             "training": draw_training}  # fmt: skip
    for name, draw in drawn.items():
        write_chart(PICTURES / f"{name}.svg", draw())
    if demo is None:
        return 0
    if not (demo / "flat" / "models").is_dir():
        print(f"error: {demo}: no models of the demo; run `make demo` first", file=sys.stderr)
        return 2
    write_chart(PICTURES / "mixers.svg", draw_mixers(demo))
    photograph_explorer(demo)
    return 0


if __name__ == "__main__":
    sys.exit(main())
