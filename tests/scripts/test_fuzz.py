"""Two hundred mutants of what comes from outside: each ends in an answer or in one line."""

import random

import pytest

from scripts.fuzz.__main__ import try_mutant
from scripts.fuzz.doors import DOORS, make_bases
from scripts.fuzz.mutants import MUTATORS

COUNT = 200 // len(DOORS) + 1


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    place = tmp_path_factory.mktemp("bases")
    make_bases(place)
    return place


@pytest.mark.first(6)
@pytest.mark.parametrize("name", DOORS)
def test_a_door_answers_or_refuses_in_one_line(name, bases, tmp_path):
    valid = "refusal" if name == "recipe" else "answer"  # a recipe is read before missing data
    try_mutant(name, bases, -1, tmp_path / "first")  # libraries take memory when first used
    assert try_mutant(name, bases, -1, tmp_path / "valid")[0] == valid
    ends = {number: try_mutant(name, bases, number, tmp_path / "mutant") for number in range(COUNT)}
    assert {n: end for n, end in ends.items() if end[0] not in ("answer", "refusal")} == {}


@pytest.mark.parametrize("name", MUTATORS)
def test_a_mutant_is_the_same_at_every_call(name, bases):
    content = next(
        (bases / d.base / d.file).read_bytes() for d in DOORS.values() if d.mutator == name
    )
    made = [MUTATORS[name](content, random.Random(seed)) for seed in (0, 0, 1, 2, 3)]
    assert made[0] == made[1]
    assert len({content, *made}) > 2
