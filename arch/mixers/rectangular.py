"""The reference's expanded mixer, whose masks are rectangular: only there to reproduce it."""

from arch.cost import Cost
from arch.mixers.expanded import Expanded, Rows
from arch.mixers.triangle import Triangle


class Rectangular(Expanded):
    """tril(V) gelu(tril(U) X + c) + b with U `(factor * context, context)` and V its transpose's.

    As in Badger's code (2409.01482): one triangle over each whole rectangle. Output i reads hidden
    rows up to i, all of them in the upper square, so whatever a factor above 1 adds is dead weight,
    and the model computes what `expanded(factor=1)` does.
    """

    def __init__(self, d_model: int, context: int, *, factor: int = 2, bias: bool = True) -> None:
        super().__init__(d_model, context, factor=factor, bias=bias)
        self.expand = Triangle(factor * context, context, bias=bias)
        self.contract = Triangle(context, factor * context, bias=bias)

    def cost(self, length: int) -> Cost:
        """Two triangular products; the rows of U below its square never act."""
        both = super().cost(length)
        hidden, context = self.expand.weight.shape
        dead = (hidden - context) * (context + (self.expand.bias is not None))
        return both + Cost(masked=dead)

    def _rows(self, start: int, count: int) -> Rows:
        expand, expand_bias = self.expand.rows(start, count)
        expand_bias = None if expand_bias is None else expand_bias[None]
        contract, bias = self.contract.rows(start, count)
        return expand[None], expand_bias, contract[None], bias
