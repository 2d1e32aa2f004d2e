"""Figures that pages of results print, counted again from the rows that are stored beside them."""

import csv
import hashlib
import json
import re
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from scipy import stats

pd: Any = pandas  # whose annotations leave open what an index or a column gives
Frame = Any
Series = Any

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
CODES = "bits.uniform.int4.cumulative"
FROZEN = [*csv.DictReader(Path(__file__).with_name("frozen.csv").read_text().splitlines())]
"""Figures of pages: the text around the mean and its limits, the rows, and what is counted: of each
unit (`of`) the mean of a value, or how much more it is at the last of `by` than at the first.
"""


@cache
def table(name: str) -> Frame:
    """Every row, nested fields as columns `a.b.c`, and the model's `name`, `seed` and `step`."""
    rows = pd.read_parquet(RESULTS / f"{name}.parquet").row.map(json.loads)
    found = pd.json_normalize(rows.tolist())
    of = found.reindex(columns=["checkpoint.name", "model", "checkpoint.step", "step"])
    parts = (
        of["checkpoint.name"]
        .astype(object)
        .fillna(of.model)
        .str.extract(r"(?P<name>.*?)(?:-s(?P<seed>\d+))?$")
    )
    step = of["checkpoint.step"].fillna(of.step)
    return found.assign(name=parts.name, seed=parts.seed, step=step)


def limits(units: Series) -> tuple[float, float]:
    """Student's limits of a mean."""
    return stats.t(len(units) - 1, units.mean(), units.sem()).interval(0.95)


def student(units: Series, digits: int = 2, scale: float = 1) -> str:
    """The mean between Student's limits."""
    return "{:.{d}f} ({:.{d}f} to {:.{d}f})".format(
        *(scale * float(x) for x in (units.mean(), *limits(units))), d=digits
    )


def at(found: Frame, field: str, place: int) -> Series:
    """A column of lists, at one of their places."""
    return pd.to_numeric(found[field].str[place])


def e1_single() -> str:
    found = table("experiments/e1")
    whole = (at(found, CODES, 3) > 9.9999).groupby([found.name, found.step]).sum()
    assert set(whole.drop("expanded")) == {120}
    return f"| expanded | {' | '.join(map(str, whole['expanded']))} |"


def e2_less(solver: str) -> str:
    found = table("experiments/e2b").query("hidden == 3 and observed == 4").copy()
    within = found.evaluations <= found["settings.budget"].fillna(float("inf"))
    found["whole"] = found.exact & found.at_floor & within
    some = found.groupby(["name", "step", "prompt", "seed", "solver"]).whole.any().unstack("solver")
    some = some[["alternating", solver]].dropna().astype(float)
    return student((some.alternating - some[solver]).groupby("seed").mean(), 0, 100)


def e6_bits(name: str, precision: str, kind: str, place: int) -> Frame:
    """Of each seed the mean bits at each step, of the last block's output."""
    found = table("experiments/e6").query("kind == 'bits' and site == 'block' and name == @name")
    value = at(found, f"bits.{precision}.{kind}", place)
    return found.assign(value=value).pivot_table("value", "seed", "step")


def e6_alone(name: str, step: int) -> str:
    return f"{e6_bits(name, 'noise 0.25 rms', 'alone', 3)[step].mean():.2f}"


def e6_slope(name: str) -> str:
    bits = e6_bits(name, "noise 0.25 rms", "alone", 3)[[391, 781, 1563, 3125]]
    doublings = np.log2(bits.columns.to_numpy(float))
    lines = {
        seed: np.cov(doublings, line)[0, 1] / doublings.var(ddof=1)
        for seed, line in bits.iterrows()
    }
    return student(pd.Series(lines))


def e6_single() -> str:
    found = table("experiments/e6").query("kind == 'bits' and site == 'block' and step <= 3125")
    single = at(found, "bits.int4.cumulative", 4) == 10
    return f"{single.sum():,} of {len(found):,}"


def e6_above() -> str:
    names = ("flat", "headed", "llama")
    bits = pd.concat([e6_bits(name, "noise 0.25 rms", "alone", 3) for name in names])
    risen = f"all {(bits[3125] > bits[0]).sum()} models"
    found = table("experiments/e6").query("kind == 'bits' and site == 'block'")
    found = found.assign(value=at(found, "bits.noise 0.25 rms.alone", 3))
    places = found.pivot_table("value", ["name", "prompt"], "step")
    return f"{risen}, and for {(places[3125] > places[0]).sum()} of {len(places)} places"


def e7_named(solver: str, name: str, hidden: int = 3, step: int = 1950) -> str:
    found = table("experiments/e7b").query("name == @name and hidden == @hidden and step == @step")
    some = found[found.solver == solver]
    assert some.prompt.nunique() == len(some) == 20
    return f"{100 * some['nonself.top1'].mean():.0f}"


def e8_bits(model: str, precision: str, place: int, layer: int = 30) -> Series:
    """Of each passage the bits of one output, by its number in the list of distances."""
    found = table("experiments/e8b")
    found = found[(found.name == model) & (found.layer == layer)]
    return at(found.set_index("passage"), f"bits.{precision}.alone", place)


def e8_single() -> str:
    places = product(("trained", "untrained"), (5, 15, 30))
    single = [e8_bits(model, "int8", 9, layer) == 6 for model, layer in places]
    ((alone, of),) = {(each.sum(), len(each)) for each in single}
    return f"512 positions back among 64 in {alone} of {of} passages"


FILLINGS = "nothing", "pads", "stories", "random"


def e9_named(name: str, tokens: str) -> Series:
    """Per cent of tokens that the published descent names, by what fills its positions."""
    found = table("experiments/e9").query("name == @name")
    assert (found.groupby("filling").prompt.nunique() == 20).all()
    return (100 * found.groupby("filling")[f"{tokens}.top1"].mean())[list(FILLINGS)]


def e9_source() -> str:
    none, pads, *others = e9_named("flat", "nonself")
    assert (none, others) == (0, [100, 100])
    return f"{pads:.0f} % (75 to 100)"


def e10_named() -> str:
    by = ["name", "settings.rate", "settings.steps"]
    named = 100 * table("experiments/e10").groupby(by)["nonself.top1"].mean()
    assert named["flat"].shape == named["parallel"].shape == (4,)
    flat, parallel = named["flat"], named["parallel"]
    assert (flat == 0).all()
    return f"0 of 60 hidden tokens (0 to 16 %), parallel ones 0 to {parallel.max():.0f} %"


def field(found: Frame, value: str) -> Frame:
    """With a column `value`: a column, its logarithm or multiple, a place of its lists, or one of
    what its lists hold.
    """
    name, _, factor = value.partition(" * ")
    if name.startswith("log2 "):
        numbers = np.log2(found[name[5:]].astype(float))
    elif "[]." in name:
        lists, _, inner = name.partition("[].")
        found = found.explode(lists)
        numbers = found[lists].str[inner].astype(float)
    elif name.endswith("]"):
        name, _, place = name[:-1].partition("[")
        numbers = at(found, name, int(place))
    else:
        numbers = found[name].astype(float)
    return found.assign(value=numbers * float(factor or 1))


def counted(line: dict[str, str]) -> str:
    """The mean over units, of a figure or of how it changes, between Student's limits."""
    found = field(table(line["rows"]).query(line["where"]), line["value"])
    if by := line["by"]:
        means = found.pivot_table(index=line["of"], columns=by, values="value")
        last, first = (means.columns.dtype.type(line[end]) for end in ("last", "first"))
        units = means[last] - means[first]
    else:
        units = found.groupby(line["of"]).value.mean()
    return line["text"].format(units.mean(), *limits(units))


@pytest.mark.parametrize("line", FROZEN, ids=lambda line: f"{line['page']} {line['value']}")
def test_a_printed_figure_is_that_of_the_rows(line: dict[str, str]) -> None:
    page = (RESULTS / line["page"]).read_text(encoding="utf-8")
    assert counted(line) in " ".join(page.split())


def e12_decoders() -> str:
    """A row of the table: what decoders find in the Llama, of 8 bits at each of four distances."""
    found = table("experiments/e12").query("kind == 'decoder' and step == 3125 and name == 'llama'")
    blind, informed = (np.array(found[f"decoder.{kind} clean"].tolist()).mean(axis=0)
                       for kind in ("blind", "informed"))  # fmt: skip
    above = np.clip(found["decoder.blind clean"].tolist(), 0, None).sum(axis=1).mean()
    shares = (blind.sum(), above, informed.sum())
    return "| Llama | {:.0f} % | {:.0f} % | {:.2f}, {:.2f} | {:.0f} % | {} |".format(
        *(100 * shares[k] / 32 for k in (0, 1)), *blind[:2], 100 * shares[2] / 32,
        ", ".join(f"{bits:.2f}" for bits in informed),
    )  # fmt: skip


CASES: dict[str, tuple[str, Callable[[], str]]] = {
    "E1, codes": ("bits.md", e1_single),
    "E2, SODA": ("states.md", lambda: e2_less("soda")),
    "E2, PEZ": ("states.md", lambda: e2_less("pez")),
    "E6, slope": ("training.md", lambda: e6_slope("flat")),
    "E6, codes": ("README.md", e6_single),
    "E6, flat": ("README.md", lambda: "| flat | {} | {} | {} |".format(
        *(e6_alone("flat", step) for step in (0, 98, 3125)))),
    "E6, Llama": ("README.md", lambda: "| Llama | {} | {} | {} |".format(
        *(e6_alone("llama", step) for step in (0, 49, 3125)))),
    "E6, above": ("README.md", e6_above),
    "E7, snap": ("recovery.md", lambda: f"snap {e7_named('snap', 'flat')} %"),
    "E7, methods": ("README.md", lambda: "| {} % | {} % | {} % | {} % | {} % |".format(
        *(e7_named(solver, "flat")
          for solver in ("adam", "descent", "soda", "snap", "alternating")))),
    "E8, codes": ("README.md", e8_single),
    "E9": ("recovery.md", e9_source),
    "E10": ("recovery.md", e10_named),
    "E12, decoders": ("structured.md", e12_decoders),
}  # fmt: skip
"""Figures that take more than a query, by name: the page, and the text that it prints."""


@pytest.mark.parametrize("name", CASES)
def test_a_printed_figure_is_that_of_more_rows(name: str) -> None:
    page, count = CASES[name]
    assert count() in " ".join((RESULTS / page).read_text(encoding="utf-8").split())


@pytest.mark.parametrize("page", ["README.md", "docs/results/README.md"])
def test_the_headline_is_that_of_the_rows(page: str) -> None:
    said = " ".join((RESULTS.parent.parent / page).read_text(encoding="utf-8").split())
    found = table("experiments/e1")
    single = at(found, CODES, -1) == found["prior_bits.uniform"]
    assert set(found.distances.map(tuple)) == {(1, 2, 4, 8)}
    assert set(found.candidates) == {1024}
    assert set(found.place) == {12}
    five = found[found.name != "expanded"]
    assert f"{single[five.index].sum():,} of {len(five):,} cases" in said.replace("*", "")
    assert (five.name.nunique(), five.prompt.nunique()) == (5, 40)
    assert five.groupby("name").seed.nunique().sum() == 15
    other = single[found.name == "expanded"].groupby(found.step).sum()
    assert "{}, {} and {} of 120".format(*other.loc[[0, 100, 400]]) in said


def lines_after(page: str, said: str) -> dict[str, list[str]]:
    """The table after a sentence of a page: by the first cell of a line the others."""
    _, found, rest = (RESULTS / page).read_text(encoding="utf-8").partition(said)
    assert found, said
    table = rest[rest.index("\n| ") :].partition("\n\n")[0].strip().splitlines()
    cut = ([cell.strip() for cell in line.strip("| ").split("|")] for line in table[2:])
    return {first: others for first, *others in cut}


HIDDEN = {0: "All 24 outputs shown:", 1: "The first output withheld:",
          3: "The first three withheld:", 10: "The first ten withheld:"}  # fmt: skip
"""By how many tokens are hidden: what recovery.md says before their table."""


@pytest.mark.parametrize("hidden", HIDDEN)
def test_each_share_of_a_method_is_that_of_the_rows(hidden: int) -> None:
    found = table("experiments/e7b").query("hidden == @hidden")
    solver = found.solver.replace({"propose": "search", "alternating": "search"})
    found = found.assign(solver=solver, named=found["nonself.top1" if hidden else "self.top1"])
    shares = found.groupby(["solver", "name", "step"]).named.mean() * 100
    shares = shares.where(shares == 100, shares.clip(upper=99))  # as the page prints it
    work = found.groupby(["solver", found.step > 0]).evaluations.median()
    printed = lines_after("recovery.md", HIDDEN[hidden])
    assert {*printed, "chance"} == set(solver)
    for solver, line in printed.items():
        for i, name in enumerate(("flat", "parallel", "llama")):
            said = [float(cell.partition(" ")[0]) for cell in line[2 * i : 2 * i + 2]]
            assert said == pytest.approx(shares[solver, name].tolist(), abs=0.5001), solver
        assert line[6:] == [f"{tokens:,.0f}" for tokens in work[solver]], solver


@pytest.mark.parametrize("mixer", ["flat", "parallel", "Llama"])
def test_each_share_of_the_published_descent_is_that_of_the_rows(mixer: str) -> None:
    line = lines_after("recovery.md", "## E9: the published descent")[mixer]
    for tokens, cells in {"nonself": line[:4], "self": line[4:]}.items():
        said = [float(cell.partition(" ")[0]) for cell in cells]
        assert said == pytest.approx(e9_named(mixer.lower(), tokens).tolist(), abs=0.5001)


CURVES = {
    "noise of 1/4 of its root mean square (RMS);": lambda name: e6_bits(
        name, "noise 0.25 rms", "alone", 3),
    "All 15 outputs together, noise of 1 RMS:": lambda name: e6_bits(
        name, "noise 1 rms", "cumulative", 4),
    "The held-out loss falls all the while": lambda name: table("experiments/e6").query(
        "kind == 'loss' and name == @name").pivot_table("nats", "seed", "step"),
}  # fmt: skip
"""What training.md says before a table: of each seed the figure at each step."""


@pytest.mark.parametrize("said", CURVES)
def test_each_point_of_a_training_is_that_of_the_rows(said: str) -> None:
    for mixer, line in lines_after("training.md", said).items():
        means = CURVES[said](mixer.lower()).loc[:, :3125].mean()
        digits = 3 if "loss" in said else 2
        assert line == [f"{value:.{digits}f}" for value in means], mixer


def test_the_codes_of_smollm2_are_those_of_its_rows() -> None:
    said = " ".join((RESULTS / "smollm2.md").read_text(encoding="utf-8").split())
    found = table("smollm2/bits")
    single = at(found, "bits.uniform.int4.alone", -1) == 12
    last, middle = (single[found["site.layer"] == layer] for layer in (30, 15))
    assert f"in {last.sum()} of {len(last)} passages at layer 30" in said
    assert f"{middle.sum()} of {len(middle)} at layer 15" in said


READINGS = {"4-bit codes": "int4", "noise 1/4 RMS": "noise 0.25 rms", "noise 1 RMS": "noise 1 rms"}


def test_each_point_of_the_forgetting_is_that_of_the_rows() -> None:
    page = (RESULTS / "forgetting.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (\w*trained) \| (\d+) \| ([^|]*) \| (.*) \|$", page, re.M)
    assert len(lines) == 12
    for model, layer, reading, said in lines:
        means = (e8_bits(model, READINGS[reading], i, int(layer)).mean() for i in range(10))
        assert said == " | ".join(f"{mean:.2f}" for mean in means), (model, layer, reading)


DEFENCES = {
    "noise": "noise", "shaped noise": "shaped", "codes": "codes", "dropped": "drop",
    "channels permuted": "permute", "channels rotated": "rotate", "rows mixed": "mix",
}  # fmt: skip


def defended() -> Frame:
    """Means over the passages of a model, tokens in per cent, by defence and strength."""
    found = table("experiments/e11").copy()
    for counted in ("exact", "right", "certain", "likely"):
        found[counted] = 100 * found[counted] / found.tokens
    by = ["name", "defence", "strength", "seed"]
    return found.groupby(by)[["kl", "exact", "bits", "right", "certain", "likely"]].mean()


def test_each_line_of_the_defences_is_that_of_the_rows() -> None:
    page = (RESULTS / "defences.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (flat|Llama) \| ([^|]+) \|([^|]*)\|(.*)\|$", page, re.M)
    means = defended().groupby(level=[0, 1, 2]).mean()
    assert len(lines) == len(means) == 36
    for model, defence, strength, said in lines:
        of = means.loc[model.lower(), DEFENCES[defence]]
        number = float(strength.strip(" %").partition(" ")[0] or 0)
        number /= 100 if "%" in strength else 1
        line = of.loc[number]
        digits = {"kl": 3, "exact": 1, "bits": 2, "right": 1, "certain": 1, "likely": 1}
        for (counted, places), cell in zip(digits.items(), said.split("|"), strict=True):
            value = float(cell) if cell.strip() else np.nan
            assert value == pytest.approx(line[counted], abs=0.5001 / 10**places, nan_ok=True), (
                model, defence, strength, counted,
            )  # fmt: skip


def test_the_verdicts_on_the_defences_are_those_of_the_rows() -> None:
    said = " ".join((RESULTS / "defences.md").read_text(encoding="utf-8").split())
    means, rows = defended().reset_index(), table("experiments/e11")
    secret = means.defence.isin(["permute", "rotate", "mix"])
    named = means[["exact", "right"]].max(axis=1)
    moderate = ~secret & (means.kl <= 0.1) & (named < 50)
    assert f"{moderate.sum()} of {(~secret).sum()}" in said
    assert (means.exact[secret] == 100).all()
    assert f"{secret.sum()} of {secret.sum()}" in said
    assert rows.certain_wrong.sum() == 0
    assert f"{rows.likely_wrong.sum()} of {rows.likely.sum():,} likely tokens" in said
    bits = {
        (name, seed, defence): np.interp(np.log(0.1), np.log(part.kl), part.bits)
        for (name, seed, defence), part in means.sort_values("kl").groupby(
            ["name", "seed", "defence"]
        )
        if defence in ("noise", "shaped")
    }
    models = {key[:2] for key in bits}
    fewer = sum(bits[(*model, "shaped")] < bits[(*model, "noise")] for model in models)
    assert f"fewer in {fewer} of {len(models)}" in said


@pytest.mark.parametrize(
    "name",
    ["e1", "e2b", "e3b", "e4b", "e5b", "e6", "e7b", "e8b", "e9", "e10", "e11", "e12", "e13", "e14"],
)
def test_rows_are_of_the_registration_beside_them(name: str) -> None:
    content = (RESULTS / "experiments" / f"{name}.yaml").read_bytes()
    found = set(table(f"experiments/{name}")["experiment.registration"])
    assert found == {hashlib.sha256(content).hexdigest()[:16]}
