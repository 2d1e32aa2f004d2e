"""What solvers that follow a gradient share."""
