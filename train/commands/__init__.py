"""Commands: flags and recipes read, data prepared, needs planned, sweeps run."""
