"""SODA: a decaying softmax over the vocabulary, by an Adam that forgets."""

from collections.abc import Iterator

from torch import Tensor

from eval.inversion.gradient.loop import Rows, gradient, moments, normal, with_gradient
from eval.inversion.spaces import embeddings


@gradient(steps=1000, objective="huber", random=True, title="SODA")
def soda(
    rows: Rows,
    *,
    rate: float = 0.065,
    keep: float = 0.9,
    temperature: float = 0.05,
    spread: float = 0.1,
    forget: int = 50,
    restart: int = 1500,
) -> Iterator[None]:
    """A softmax over the vocabulary at each position that decays, by an Adam that forgets.

    Sparse one-hot discrete Adam (Skapars et al., 2507.01693). What the model reads is
    softmax(z / temperature) W. Adam without correction for its moments' start; z decays at every
    step, the moments start anew now and then, and z itself from noise.

    Args:
        rows: of any slices.
        rate: of Adam on z.
        keep: what is left of z at every step.
        temperature: of the softmax.
        spread: standard deviation of z at the start, which is zeros in the paper, and each time it
            starts anew.
        forget: the moments start anew after so many steps.
        restart: z starts anew after so many steps.
    """
    W = rows.vocabulary

    def read(z: Tensor) -> Tensor:
        return embeddings("softmax", z / temperature, W)

    def noise() -> Tensor:
        return spread * normal(rows.chance, (rows.length, len(W)), W)

    z, step, adam = noise(), W.new_tensor(rate), {"second": 0.995, "corrected": False}
    state = moments(z, **adam)
    rows.scores = lambda: z
    for i in range(rows.steps):
        if i and i % restart == 0:
            z = noise()
        if i and i % forget == 0:
            state = moments(z, **adam)
        _, slope = with_gradient(lambda z: rows.losses(read(z)), z)
        z = keep * (z - step * state.direction(slope))
        rows.spent += 3 * rows.length
        yield
        z, state = rows.kept(z, state)
