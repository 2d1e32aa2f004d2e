#!/bin/bash
# Shares the work of an eval command among the jobs of an array: sbatch scripts/slurm/eval.sh invert MODEL --out DIR.
# The same line again goes on with what is missing. Change the number of jobs, numbered from 1, to yours.
#SBATCH --array=1-8
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=1
#SBATCH --time=4:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

exec python -m eval "$@" --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
