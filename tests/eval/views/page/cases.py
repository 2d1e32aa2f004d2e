"""Made-up rows of evidence, with as many tokens right as asked for, and a reader of pages."""

import math
import random
import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

from eval.models.identity import model_id
from eval.rows.store import row_key
from eval.views.comparison.gather import SIZES

STORY = (
    "Once _upon _a _time _there _was _a _little _fox . _The _fox _lived _near _the _river _and _had"
    ' _a _red _boat . \n One _day _she _saw _a _small _bird _who _was _sad . _" Why _are _you ? "'
)
WORDS = [word.replace("_", " ").replace("\\n", "\n") for word in STORY.split(" ")]
SOLVED = {  # share of (self, hidden) tokens found, by model, training and solver
    ("flat", False, "descent"): (0.97, 0.0),
    ("flat", True, "descent"): (0.93, 0.0),
    ("flat", False, "adam"): (1.0, 0.3),
    ("flat", True, "adam"): (0.98, 0.1),
    ("llama", False, "descent"): (0.17, 0.0),
    ("llama", True, "descent"): (0.3, 0.0),
    ("llama", False, "adam"): (1.0, 0.2),
    ("llama", True, "adam"): (0.8, 0.05),
}
SETTINGS = {
    "descent": {"steps": 500, "rate": 0.02},
    "adam": {"steps": 300, "rate": 0.2},
    "sweep": {},
    "alternating": {"starts": 8, "rounds": 6},
}


def checkpoint_of(about: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The `checkpoint` of a row, with the id of a model of that name and those sizes."""
    about = about | changes
    digest = row_key(*(about.get(name) for name in ("mixers", "parameters", *SIZES)))
    return about | {"model_id": model_id({"name": about["name"]}, digest)}


def make_row(
    model="llama", step=300, layer=4, hidden=3, solver="descent", prompt=0, seed=0, length=16,
    prompts="story", share=None, **changes,
):  # fmt: skip
    """One row, with tokens wrong at random so that `share` of (self, hidden) are right."""
    trained = step > 0
    exact = solver in ("sweep", "alternating")
    share = share or ((1.0, 1.0) if exact else SOLVED[model, trained, solver])
    rng = random.Random(f"{model} {step} {layer} {hidden} {solver} {prompt} {seed} {prompts}")
    start = 3 * prompt
    truth = [(start + i) % len(WORDS) if prompts != "random" else rng.randrange(len(WORDS))
             for i in range(length)]  # fmt: skip
    rank = [0 if rng.random() < share[i < hidden] else rng.randint(1, 4000) for i in range(length)]
    found = [t if r == 0 else (t + 1 + rng.randrange(len(WORDS) - 1)) % len(WORDS)
             for t, r in zip(truth, rank, strict=True)]  # fmt: skip

    def part(ranks):
        return {
            "count": len(ranks),
            "top1": sum(r == 0 for r in ranks) / len(ranks),
            "top5": sum(r < 5 for r in ranks) / len(ranks),
            "median_rank": float(sorted(ranks)[len(ranks) // 2]),
        } if ranks else None  # fmt: skip

    floor = 2e-6 * (1 + layer) * rng.uniform(0.6, 1.4)
    margin = (9.7 if model == "flat" else 0.4) * (1 + layer / 2)
    margin *= (rng.uniform(1, 3) if exact else 1) * (1.4 if trained else 1)
    near = floor / 3  # of one position, less than of all of them together
    row = {
        "schema": 3,
        "kind": "recovery",
        "key": f"{model}-{step}-{layer}-{hidden}-{solver}-{prompts}-{prompt}-{seed}-{length}",
        "checkpoint": checkpoint_of({
            "name": model, "path": f"runs/{model}/models/step-{step:06d}", "step": step,
            "trained": trained, "mixers": ["flat" if model == "flat" else "attention(heads=4)"],
            "d_model": 128, "n_layers": 4, "context": 64, "parameters": 1_234_567,
            "val_loss": 3.1 if trained else 8.4, "init": "default", "embedding_std": None,
            "settings_sha256": "c", "seed": None, "max_steps": None,
            "weights_sha256": f"{model}{step}" * 8,
        }),
        "site": {"layer": layer, "part": "block", "without": []},
        "slice": f"[:, {hidden}:, :]",
        "length": length, "shown": [*range(hidden, length)],
        "observed": length - hidden, "hidden": hidden,
        "padded": False, "noise": 0.0, "control": None, "corpus": None,
        "solver": solver, "family": "search" if exact else "gradient",
        "settings": SETTINGS[solver],
        "prompts": prompts, "prompt": prompt, "seed": seed,
        "text": "".join(WORDS[t] for t in truth),
        "truth": truth, "found": found,
        "truth_text": [WORDS[t] for t in truth], "found_text": [WORDS[t] for t in found],
        "rank": rank, "self": part(rank[hidden:]), "nonself": part(rank[:hidden]),
        "exact": found == truth,
        "set_recall": sum(r == 0 for r in rank[:hidden]) / hidden if hidden else None,
        "permuted": False if hidden > 1 else None,
        "residual": floor / 3 if exact else rng.uniform(1, 5),
        "floor": floor, "at_floor": exact, "truth_at_floor": True, "diverged": False,
        "certificate": ("residual" if hidden else "enumerated") if exact else None,
        "uncertified": None,
        "margin": margin if exact else None, "margin_floor": near if exact else None,
        "margin_bits": math.log2(margin / near) if exact else None,
        "criterion": rng.random() < 0.7 if solver == "descent" else None,
        "verdict": ["recovered" if r == 0 else "not found" for r in rank],
        "collisions": [],
        "evaluations": 4096 * length if exact else 3 * 500 * length,
        "steps_to_solve": None, "seconds": 1.25 if exact else 0.5, "notes": {},
        "batch": 64,
        "candidates_at_once": 8192,
    }  # fmt: skip
    return row | changes


def make_rows(
    models=("flat", "llama"), steps=(0, 300), layers=(1, 2, 4), hidden=(0, 1, 3), count=8
):
    """Everything the demo asks."""
    return [
        make_row(model, step, layer, k, solver, prompt)
        for model in models
        for step in steps
        for layer in layers
        for k in hidden
        for solver in ("descent", "adam", "alternating" if k else "sweep")
        for prompt in range(count)
    ]


class Page(HTMLParser):
    """Checks that every tag is closed, and collects cells, text and tags by class."""

    VOID = ("meta", "br", "link", "img", "input", "hr")

    def __init__(self, html):
        super().__init__()
        self.open, self.tables, self.cells, self.classes, self.text = [], [], None, Counter(), []
        self.attributes = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        for name in (dict(attrs).get("class") or "").split():
            self.classes[tag, name] += 1
        if tag in self.VOID:
            return
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.cells = True

    def handle_startendtag(self, tag, attrs):
        assert tag in ("path", "line", "stop"), tag
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.cells = None

    def handle_data(self, data):
        self.text.append(data)
        if self.cells:
            self.tables[-1][-1][-1] += data.strip("\n")

    @property
    def words(self):
        return " ".join("".join(self.text).split())


def expected_share(rows, kind, k, **place):
    """Counted from the ranks alone."""
    ranks = [
        r
        for row in rows
        if row["hidden"] == k
        and place.items() <= {
            "model": row["checkpoint"]["name"], "step": row["checkpoint"]["step"],
            "layer": row["site"]["layer"], "solver": row["solver"], "prompts": row["prompts"],
        }.items()
        for r in (row["rank"][k:] if kind == "self" else row["rank"][:k])
    ]  # fmt: skip
    return sum(r == 0 for r in ranks) / len(ranks)


def tick_labels(svg):
    """The labels of every axis of a drawing by Vega."""
    groups = re.findall(r"<g[^>]*role-axis-label[^>]*>(.*?)</g>", svg.read_text(), re.DOTALL)
    axes = [re.findall(r"<text[^>]*>([^<]*)</text>", group) for group in groups]
    return [[label for label in labels if label] for labels in axes]


def renamed(row, name):
    return row | {"checkpoint": checkpoint_of(row["checkpoint"], name=name)}


def about(step: int, weights: str = "a", name: str = "flat") -> dict[str, Any]:
    known = make_row("flat", step)["checkpoint"]
    return checkpoint_of(known, name=name, weights_sha256=f"{weights}{step}")


def control_of(row: dict[str, Any], control: str, **changes: Any) -> dict[str, Any]:
    """The row of a control of its model."""
    about = row["checkpoint"]
    derived = {"name": f"{about['name']} [{control}]", "weights_sha256": control}
    return row | {"key": f"{row['key']} {control}", "control": control,
                  "checkpoint": about | derived | changes}  # fmt: skip


def row(kind: str, checkpoint: dict[str, Any], **changes: Any) -> dict[str, Any]:
    weights = checkpoint["weights_sha256"]
    return {"key": f"{kind} {weights} {changes}", "kind": kind, "checkpoint": checkpoint} | changes


def lens(checkpoint: dict[str, Any], value: float | None, layer: int = 1) -> dict[str, Any]:
    return row("lens", checkpoint, lens="residual", figure="norm", layer=layer, value=value,
               prompts=4, prompt_kind="story", length=8,
               look=checkpoint["weights_sha256"])  # fmt: skip


def loss_row(checkpoint: dict[str, Any], nats: list[float], **changes: Any) -> dict[str, Any]:
    """The loss on texts of two bytes each, a part for each number."""
    count = len(nats)
    parts = {"nats": nats, "tokens": [1] * count, "bytes": [2] * count}
    mean = sum(nats) / count
    own = {"corpus": "toy", "stories": count, "parts": parts, "nats_per_token": mean,
           "bits_per_byte": mean / math.log(2) / 2, "tokens_per_second": 9.0,
           "tokens": count, "bytes": 2 * count, "perplexity": math.exp(mean),
           "batch": 1}  # fmt: skip
    return row("loss", checkpoint, **own | changes)


def bits_row(checkpoint: dict[str, Any], prompt: int, bits: float) -> dict[str, Any]:
    """Bits about one token at distances 0 and 4, under noise of a quarter of the RMS."""
    alone = {"alone": [bits + 1, bits], "cumulative": [bits + 1, bits + 1]}
    own = {"corpus": "toy", "place": 12, "candidates": 40, "prompts": "inside", "prompt": prompt,
           "truth": [prompt], "distances": [0, 4], "rms": [1.0, 1.0], "effect": [0.5, 0.1],
           "effect_sampled": [0.5, 0.1], "margin_bits": {"alone": [9.0, 3.0]},
           "tokens": [prompt], "draws": 8, "seed": 0, "prior_bits": {"uniform": 5.3},
           "bits": {"uniform": {"noise 0.25 rms": alone}}}  # fmt: skip
    return row("bits", checkpoint, site={"layer": 4, "part": "block"}, **own)


def every_kind(checkpoint: dict[str, Any]) -> list[dict[str, Any]]:
    site = {"site": {"layer": 4, "part": "block"}, "seconds": 0.5}
    unigram = {"top1": 0.1, "information": 0.2}
    return [
        lens(checkpoint, 2.0 + checkpoint["step"]),
        lens(checkpoint, None, layer=2),
        loss_row(checkpoint, [3.0, 4.0], bits_per_byte=2.5),
        row("probe", checkpoint, method="gaussian", offset=-1, top1=0.25, information=0.5,
            gain=0.3, unigram=unigram, settings={}, **site),
        row("geometry", checkpoint, sigma_min=0.5, hidden=0, sigma_max=2.0, condition=4.0,
            effective_rank=3.0, inputs=8, removed=1, length=1, prompts="story", prompt=0, truth=[3],
            **site),
    ]  # fmt: skip
