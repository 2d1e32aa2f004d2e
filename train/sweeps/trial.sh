#!/bin/sh
# One run of a W&B sweep. `wandb agent` calls this with the flags of the run, from the checkout.
# The run's id is in the environment only now (a sweep's ${envvar:...} is filled in too early), and
# training takes it from the run directory, so that W&B knows the run as the sweep's own.
set -eu
run="${SWEEP_RUNS:-runs/sweeps}/${WANDB_SWEEP_ID:?is not set: start this by wandb agent}/${WANDB_RUN_ID:?is not set}"
mkdir -p "$run"
printf %s "$WANDB_RUN_ID" > "$run/wandb_id"
exec python "$(dirname "$0")/../../remnant.py" train fit --wandb=online --resume=auto "$@" --run="$run"
