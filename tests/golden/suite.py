"""What the golden rows ask: every solver, lens, probe and table, of every family of models.

Texts are given as they are, so that no change in how a corpus is read moves them; only the part
`texts` draws prompts, one from each kind of source.
"""

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
STORIES = FOLDER / "stories"
CAT, DOG, RED = "Once upon a time, there was a cat.", "The dog was sad.", "Max saw a red fox."
SHOWN, ONE, THREE, HOLES = "[:, 0:, :]", "[:, 1:, :]", "[:, 3:, :]", "[:, 1:4+5:7+8:, :]"

Step = dict[str, Any]


def model(name: str, step: int = 400) -> str:
    """A committed model, as a command line names it."""
    path = FOLDER / "models" / name
    return f"hf:{path}" if name.startswith("hf-") else str(path / f"step-{step:06d}")


FLAT, LLAMA = model("flat"), model("llama")
FAMILIES = sorted(
    model(path.name)
    for path in (FOLDER / "models").iterdir()
    if path.name not in ("flat", "flat-s1", "llama")
)
MIXING = [name for name in FAMILIES if name != model("identity")]
"""Those that let a hidden token be seen: of others, rounding ranks the tokens."""


def invert(models: list[str], slices: list[str], methods: list[str], **flags: Any) -> Step:
    """A step that recovers texts from the last layer."""
    asked = {"layers": ["last"], "text": [CAT], "corpus": STORIES} | flags
    return {"ask": "invert", "models": models, "slices": slices, "methods": methods, **asked}


def lens(names: list[str], models: list[str], **flags: Any) -> Step:
    """A step that looks at two texts."""
    asked = {"text": [CAT, "One day, a little dog felt sad."], "corpus": STORIES, "tokens": 2048}
    return {"ask": "lens", "models": models, "lens": names, **asked, **flags}


PROBE = {
    "ask": "probe",
    "models": [FLAT],
    "length": 16,
    "train_tokens": 3200,
    "valid_tokens": 640,
    "offsets": [0],
    "steps": 0,
}
SOURCES = {
    "toy": "toy:120:3",
    "file": STORIES / "valid.txt",
    "lines": FOLDER / "stories.jsonl",
    "directory": STORIES,
}
SUITE: dict[str, dict[str, Step]] = {
    "families": {
        "every layer": invert(FAMILIES, [SHOWN], ["sweep", "propose"], layers=["1", "2"]),
        "one hidden": invert(MIXING, [ONE], ["alternating"]),
        "loss": {"ask": "loss", "models": FAMILIES, "corpus": STORIES, "stories": 2},
    },
    "search": {
        "shown": invert(
            [FLAT, LLAMA],
            [SHOWN],
            ["sweep", "propose", "chance"],
            layers=["0", "1", "2", "1+2"],
            text=[CAT, DOG],
        ),
        "hidden": invert([FLAT, LLAMA], [ONE, THREE], ["alternating", "chance"], text=[CAT, DOG]),
        "holes": invert([FLAT, LLAMA], [HOLES], ["alternating"]),
        "few starts": invert(
            [FLAT],
            [THREE, "[:, 5:, :]"],
            ["alternating"],
            set=["alternating.starts=1", "alternating.rounds=1"],
        ),
        "by gradients": invert(
            [LLAMA], [SHOWN], ["sipit"], set=["sipit.steps=20", "sipit.tried=4"], text=[DOG]
        ),
        "snap": invert([LLAMA], [ONE], ["snap"], text=[DOG]),
        "snap, too short": invert(
            [FLAT], [THREE], ["snap"], set=["snap.steps=30", "snap.resolve=30"], text=[DOG]
        ),
        "channels": invert([FLAT], ["[:, :, :1]", "[:, :, :4]", "[:, :5, :]"], ["sweep"]),
        "parts": invert(
            [FLAT, LLAMA], [SHOWN], ["sweep"], parts=["mixer", "stream"], layers=["1", "2"]
        ),
        "ablated": invert([FLAT, LLAMA], [SHOWN], ["sweep"], without=["norms", "channel"]),
        "noise": invert([FLAT], [SHOWN], ["sweep"], noise=["0.3", "2.0"], text=[CAT, DOG]),
        "prior": invert(
            [FLAT],
            [SHOWN],
            ["sweep"],
            noise=["0", "0.3", "2.0"],
            text=[CAT, DOG],
            set=["sweep.prior=1"],
        ),
        "shuffled": invert(
            [FLAT, LLAMA],
            [SHOWN],
            ["sweep", "propose"],
            controls=["shuffled"],
            text=[DOG, "The cat was sad."],
        ),
        "controls": invert([FLAT], [SHOWN, ONE], ["sweep"], controls=["identity", "scale=0.1"]),
        "another embedding": invert(
            [FLAT], [SHOWN], ["sweep"], controls=[f"embedding={model('flat-s1')}"]
        ),
        "padded": invert([FLAT], [SHOWN, ONE], ["sweep", "alternating"], pad_to=16, text=[DOG]),
    },
    "gradient": {
        "descent": invert(
            [LLAMA], [SHOWN, ONE], ["descent"], set=["descent.steps=300"], layers=["1"], text=[DOG]
        ),
        **{
            f"{name}, {case}": invert(
                [LLAMA], slices, [name], set=[f"{name}.{setting}"], layers=["1"], text=[DOG], **more
            )
            for name, solved, brief in (
                ("adam", "steps=100", "steps=3"),
                ("pez", "steps=400", "steps=5"),
                ("gcg", "steps=100", "steps=2"),
                ("soda", "steps=400", "steps=3"),
            )
            for case, slices, setting, more in (
                ("shown", [SHOWN], solved, {}),
                ("hidden", [THREE], brief, {}),
            )
        },
        "allowed": invert(
            [LLAMA], [SHOWN], ["adam"], set=["adam.steps=100"], text=[DOG], allowed=DOG
        ),
    },
    "lenses": {
        "flat": lens(["all"], [FLAT]),
        "llama": lens(["all"], [LLAMA]),
        "headed": lens(["residual", "logit", "circuits"], [model("headed")], text=[CAT, RED]),
        "wrapped": lens(
            ["residual", "logit", "circuits"], [model("hf-gpt2"), model("hf-llama")], text=[CAT]
        ),
    },
    "readers": {
        "probe": {
            **PROBE,
            "corpus": STORIES,
            "offsets": [-1, 0, 1],
            "steps": 20,
        },
        "geometry": {
            "ask": "geometry",
            "models": [FLAT, LLAMA],
            "corpus": STORIES,
            "hidden": [1, 3],
            "count": 2,
            "length": 6,
        },
        "loss": {"ask": "loss", "models": [FLAT, LLAMA], "corpus": STORIES, "stories": 8},
    },
    "tables": {
        "rows": invert(
            [model("flat", 0), FLAT, model("flat-s1"), LLAMA],
            [SHOWN, ONE],
            ["sweep", "alternating", "adam", "chance"],
            text=[CAT, DOG, RED],
            set=["adam.steps=2"],
        ),
        "loss": {
            "ask": "loss",
            "models": [model("flat", 0), FLAT, model("flat-s1"), LLAMA],
            "corpus": STORIES,
            "stories": 4,
        },
        "summary": {"ask": "summary", "of": ["rows"]},
        "compare": {"ask": "compare", "of": ["rows", "loss"], "prompts": "text"},
        "compare, every seed": {
            "ask": "compare",
            "of": ["rows", "loss"],
            "every_seed": True,
            "prompts": "text",
            "method": "adam",
        },
    },
    "texts": {
        **{
            name: invert([FLAT], [SHOWN], ["chance"], corpus=source, text=[], count=2, length=8)
            | {"prompts": ["story", "inside", "random"]}
            for name, source in SOURCES.items()
        },
        **{
            f"{name}, read": {"ask": "loss", "models": [FLAT], "corpus": source, "stories": 2}
            for name, source in SOURCES.items()
        },
        "packed": {"ask": "pack", "stories": STORIES, "tokenizer": FOLDER / "tokenizer.json"},
        "packed, read": {**PROBE, "of": "packed"},
    },
}
"""Steps by part and case."""
