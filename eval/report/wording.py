"""The words and numbers of the report, the same on the page and in the terminal."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from eval.report.evidence import Task


@dataclass(frozen=True)
class Method:
    """How a method is called and what it does, for a reader who has never met it."""

    name: str
    short: str
    word: str
    does: str


METHODS = {
    "descent": Method(
        "gradient descent (the published protocol)",
        "gradient descent",
        "gradient",
        "Starts from random vectors in place of the tokens and walks downhill until their outputs "
        "resemble those shown, then takes each vector's nearest token. Start, step size and "
        "stopping are exactly those of the work that this project grew from, its seed.",
    ),
    "adam": Method(
        "Adam at the model's scale",
        "Adam",
        "Adam",
        "The same idea with a better optimiser, its start and step size scaled to the model's own "
        "embedding.",
    ),
    "lbfgs": Method(
        "L-BFGS",
        "L-BFGS",
        "lbfgs",
        "Downhill on the vectors, with what earlier steps taught of the curvature, and a "
        "search along each line.",
    ),
    "levenberg": Method(
        "Levenberg-Marquardt",
        "Levenberg",
        "levenberg",
        "Solves for the vectors as a least-squares problem, made linear anew at each step.",
    ),
    "pia": Method(
        "PIA",
        "PIA",
        "pia",
        "Vectors drawn towards tokens, then tokens picked left to right among those nearest "
        "(after Qu et al., 2503.09022).",
    ),
    "pez": Method(
        "PEZ",
        "PEZ",
        "pez",
        "Vectors moved by the gradient at the tokens nearest to them (after Wen et al., "
        "2302.03668).",
    ),
    "gumbel": Method(
        "Gumbel-softmax",
        "gumbel",
        "gumbel",
        "A distribution over tokens at each position, sampled so that gradients pass through.",
    ),
    "soda": Method(
        "SODA",
        "SODA",
        "soda",
        "A softmax over the vocabulary at each position that decays at each step, by an Adam "
        "that forgets (after Skapars et al., 2507.01693).",
    ),
    "gcg": Method(
        "GCG",
        "GCG",
        "gcg",
        "The gradient shortlists tokens at every position; random ones of them are tried "
        "(after Zou et al., 2307.15043).",
    ),
    "arca": Method(
        "ARCA",
        "ARCA",
        "arca",
        "Position by position, a gradient averaged over random tokens says which to try "
        "(after Jones et al., 2303.04381).",
    ),
    "best": Method("the best of the other gradient methods", "other gradient", "other grad.", ""),
    "exact": Method("exact search", "exact search", "exact", ""),
    "sweep": Method(
        "exact search, sweep",
        "exact search",
        "exact",
        "Tries every token of the vocabulary at each position, left to right, and keeps the one "
        "whose output lies nearest. For positions that are shown.",
    ),
    "propose": Method(
        "exact search, propose and verify",
        "exact search",
        "exact",
        "Guesses the whole prompt and checks it in one pass, which proves every position up to the "
        "first that misses; there it searches. For positions that are shown.",
    ),
    "snap": Method(
        "snap and resolve",
        "snap",
        "snap",
        "Descends on all vectors, makes the shown ones tokens, then descends on the hidden ones "
        "alone and tries the likeliest tokens of each.",
    ),
    "enumerate": Method(
        "exact search, enumeration",
        "enumeration",
        "enum.",
        "Finds an answer and then rules out every other choice of the hidden tokens.",
    ),
    "expected": Method(
        "search with a prior",
        "with prior",
        "prior",
        "A sweep that weighs the evidence against what the model itself expects to come next; it "
        "measures that expectation too.",
    ),
    "chance": Method("chance", "chance", "chance", "Random tokens, without looking."),
    "alternating": Method(
        "exact search, alternating",
        "exact search",
        "exact",
        "Takes turns: a sweep over the shown positions, then every token of the vocabulary at each "
        "hidden one, until the outputs agree to within rounding, which proves the answer. Nothing "
        "is given.",
    ),
}
FIRST = (
    "descent", "adam", "best", "lbfgs", "levenberg", "pia", "pez", "gumbel", "soda", "gcg", "arca",
)  # fmt: skip
LAST = ("exact", "propose", "sweep", "alternating", "enumerate", "snap", "chance")
"""The order of the methods; any others stand between."""
PROMPTS = {"story": "story", "random": "random tokens", "text": "given text"}
"""The prompt sets, in the order of reading."""


def method(name: str) -> Method:
    """The wording of a method; an unknown one is called by its name."""
    return METHODS.get(name, Method(name, name, name, ""))


def column_order(names: set[str]) -> list[str]:
    """Methods in the order of reading."""
    others = sorted(names - {*FIRST, *LAST})
    return [name for name in (*FIRST, *others, *LAST) if name in names]


def variation_label(departs: Iterable[tuple[str, Any]]) -> str:
    """In what a question departs from the plain one: `noise 0.5, control: shuffled`."""
    words = {
        "channels": "channels {}",
        "without": "without {}",
        "noise": "noise {:g}",
        "control": "control: {}",
    }
    return ", ".join(words.get(name, name).format(value) for name, value in departs)


def prompt_set(name: str) -> str:
    """A prompt set in words."""
    return PROMPTS.get(name, name)


def prompt_order(name: str) -> tuple[int, str]:
    """The place of a prompt set in the order of reading."""
    names = list(PROMPTS)
    return (names.index(name) if name in names else len(names), name)


def task_label(task: Task) -> str:
    """What is asked, short: `3 hidden tokens`, `all tokens shown`."""
    plain = task.slice.replace(" ", "") == f"[:,{task.hidden}:,:]"
    where = "" if plain else f" of {task.slice}"
    tokens = "1 hidden token" if task.hidden == 1 else f"{task.hidden} hidden tokens"
    if task.nonself:
        return tokens + where
    return f"shown tokens beside {tokens}{where}" if task.hidden else f"all tokens shown{where}"


def task_kind(task: Task) -> str:
    """The field's word for it: self or non-self."""
    return f"non-self, k = {task.hidden}" if task.nonself else "self"


def site_label(layer: int, part: str) -> str:
    """`4` for a block's output, `4 mixer` and the like for its parts."""
    return str(layer) if part == "block" else f"{layer} {part}"


def percent(share: float) -> str:
    """A share in whole percent that reads 0 or 100 only where it is so."""
    text = f"{100 * share:.0f}"
    if text == "0" and share > 0:
        return "<1"
    return ">99" if text == "100" and share < 1 else text


def number(value: float | None) -> str:
    """A number short enough for a table cell; a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    if 0.001 <= abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.1e}"


def duration(seconds: float) -> str:
    """Seconds as a reader would say them."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def visible(token: str) -> str:
    """A token's text with blanks and control characters that can be seen."""
    marks = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
    shown = (marks.get(c) or (c if c.isprintable() else ascii(c)[1:-1]) for c in token)
    return "".join(shown) or "∅"
