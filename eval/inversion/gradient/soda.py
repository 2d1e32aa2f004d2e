"""SODA: a decaying softmax over the vocabulary, by an Adam that forgets."""

from collections.abc import Iterator

from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.gradient.loop import Rows, drive, moments, normal, with_gradient
from eval.inversion.solvers import NONE, Chance, Tools, solver
from eval.inversion.spaces import embeddings
from eval.inversion.spaces import objective as by_name


@solver("gradient", random=True, title="SODA")
def soda(
    batch: Batch,
    chance: Chance,
    tools: Tools = NONE,
    *,
    steps: int = 1000,
    rate: float = 0.065,
    keep: float = 0.9,
    temperature: float = 0.05,
    spread: float = 0.1,
    forget: int = 50,
    restart: int = 1500,
    objective: str = "huber",
    check: int = 25,
) -> list[Answer]:
    """A softmax over the vocabulary at each position that decays, by an Adam that forgets.

    Sparse one-hot discrete Adam (Skapars et al., 2507.01693). What the model reads is
    softmax(z / temperature) W. Adam without correction for its moments' start; z decays at every
    step, the moments start anew now and then, and z itself from noise.

    Args:
        batch: any slices.
        chance: the source of each row's noise.
        tools: not used.
        steps: the most that a row takes.
        rate: of Adam on z.
        keep: what is left of z at every step.
        temperature: of the softmax.
        spread: standard deviation of z at the start, which is zeros in the paper, and each time it
            starts anew.
        forget: the moments start anew after so many steps.
        restart: z starts anew after so many steps.
        objective: what is lowered.
        check: rows that are solved leave after every so many steps.
    """
    loss, W = by_name(objective), batch.circuit.vocabulary

    def read(z: Tensor) -> Tensor:
        return embeddings("softmax", z / temperature, W)

    def noise(chance: Chance) -> Tensor:
        return spread * normal(chance, (batch.length, len(W)), W)

    def descend(rows: Rows) -> Iterator[None]:
        z, step, adam = noise(chance), W.new_tensor(rate), {"second": 0.995, "corrected": False}
        state = moments(z, **adam)
        rows.scores = lambda: z
        for i in range(steps):
            if i and i % restart == 0:
                z = noise(rows.chance)
            if i and i % forget == 0:
                state = moments(z, **adam)
            _, gradient = with_gradient(lambda z: rows.batch.losses(read(z), loss), z)
            z = keep * (z - step * state.direction(gradient))
            rows.spent += 3 * batch.length
            yield
            z, state = rows.kept(z, state)

    return drive(batch, chance, descend, steps, check)
