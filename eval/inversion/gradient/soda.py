"""SODA: a decaying softmax over the vocabulary, by an Adam that forgets."""

from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.gradient.moments import Adam, AdamSolver
from eval.inversion.gradient.solver import Chance, PerRow, drive, normal, per_row, with_gradient
from eval.inversion.gradient.variable import embeddings
from eval.inversion.objective import objective as by_name


def soda(
    batch: Batch,
    chance: Chance,
    *,
    steps: int = 1000,
    rate: PerRow = 0.065,
    keep: float = 0.9,
    temperature: float = 0.05,
    spread: float = 0.1,
    forget: int = 50,
    restart: int = 1500,
    objective: str = "huber",
    check: int = 25,
) -> list[Answer]:
    """Sparse one-hot discrete Adam (Skapars et al., 2507.01693).

    What the model reads is softmax(z / temperature) W. Adam without correction for its moments'
    start; z decays at every step, the moments start anew now and then, and z itself from noise.

    Args:
        batch: any slices.
        chance: the source of each row's noise.
        steps: the most that a row takes.
        rate: of Adam on z, of all rows or of each.
        keep: what is left of z at every step.
        temperature: of the softmax.
        spread: standard deviation of z at the start, which is zeros in the paper, and each time it
            starts anew.
        forget: the moments start anew after so many steps.
        restart: z starts anew after so many steps.
        objective: by its name.
        check: rows that are solved leave after every so many steps.
    """
    solver = _Soda(batch, chance, rate, temperature, spread, objective)
    solver.keeps, solver.forgets, solver.restarts = keep, forget, restart
    return drive(solver, steps, check)


class _Soda(AdamSolver):
    adam = Adam(first=0.9, second=0.995, corrected=False)
    keeps: float
    forgets: int
    restarts: int

    def __init__(
        self,
        batch: Batch,
        chance: Chance,
        rate: PerRow,
        temperature: float,
        spread: float,
        objective: str,
    ) -> None:
        super().__init__(batch, chance)
        self.temperature, self.spread, self.objective = temperature, spread, by_name(objective)
        self.z = self._noise()
        self.rate = per_row(rate, self.z)
        self.forget(self.z)

    def step(self, i: int) -> int:
        if i and i % self.restarts == 0:
            self.z = self._noise()
        if i and i % self.forgets == 0:
            self.forget(self.z)
        _, gradient = with_gradient(self._losses, self.z)
        self.z = self.keeps * (self.z - self.rate * self.direction(gradient))
        return 3 * self.batch.length

    def scores(self) -> Tensor:
        return self.z

    def _losses(self, z: Tensor) -> Tensor:
        vocabulary = self.batch.circuit.vocabulary
        read = embeddings("softmax", z / self.temperature, vocabulary)
        return self.batch.losses(read, self.objective)

    def _noise(self) -> Tensor:
        W = self.batch.circuit.vocabulary
        return self.spread * normal(self.chance, (self.batch.length, len(W)), W)
