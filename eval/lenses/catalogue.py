"""All lenses by name."""

import difflib

from eval.errors import RequestError
from eval.lenses.attribution import ATTRIBUTION
from eval.lenses.bigrams import BIGRAMS
from eval.lenses.confidence import CONFIDENCE
from eval.lenses.detokenisation import DETOKENISATION
from eval.lenses.features import FEATURES
from eval.lenses.geometry import GEOMETRY
from eval.lenses.intervention import INTERVENTION
from eval.lenses.lens import Lens
from eval.lenses.logit_lens import LOGIT_LENS
from eval.lenses.mixing import MIXING
from eval.lenses.ov import OV
from eval.lenses.path import PATH
from eval.lenses.residual import RESIDUAL
from eval.lenses.sparse import SPARSE
from eval.lenses.steering import STEERING
from eval.lenses.tuned_lens import TUNED_LENS

ALL = "all"
LENSES: dict[str, Lens] = {
    lens.name: lens
    for lens in (
        RESIDUAL,
        LOGIT_LENS,
        TUNED_LENS,
        GEOMETRY,
        BIGRAMS,
        CONFIDENCE,
        PATH,
        MIXING,
        OV,
        ATTRIBUTION,
        INTERVENTION,
        STEERING,
        FEATURES,
        SPARSE,
        DETOKENISATION,
    )
}


def choose(names: list[str]) -> list[Lens]:
    """The lenses of these names, `all` standing for every one, each once.

    Raises:
        RequestError: a name that is not there.
    """
    chosen: dict[str, Lens] = {}
    for name in names:
        if name != ALL and name not in LENSES:
            near = difflib.get_close_matches(name, LENSES, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise RequestError(
                f"--lens {name}: no lens of that name; {hint}use {ALL} or some of "
                f"{', '.join(LENSES)}"
            )
        chosen |= LENSES if name == ALL else {name: LENSES[name]}
    return list(chosen.values())
