"""The solvers, a file each; `eval.inversion.solver` reads them."""
