#!/bin/bash
# Trains on two nodes of eight GPUs under SLURM: sbatch scripts/slurm/fit.sh --config flat --data DIR --run RUN.
# Before its time ends, the run saves and the job starts again. Change the sizes to yours. To begin from another
# run's checkpoint, start once without this script, with --resume CHECKPOINT, and stop: this goes on from there.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=12:00:00
#SBATCH --signal=USR1@120                # enough for --log_every steps, a checkpoint and a validation
#SBATCH --requeue
#SBATCH --open-mode=append

if [[ " $*" == *" --resume"* ]]; then
    echo "error: --resume: every start has --resume auto here; leave it out" >&2
    exit 2
fi

export TORCH_CPP_LOG_LEVEL=ERROR         # what torch says of a machine that is gone
# Processes end each other; --wait is for those whose end nobody was told.
srun --kill-on-bad-exit=0 --wait=60 python -m train fit "$@" --resume auto --trainer.num_nodes "$SLURM_NNODES" \
    --trainer.devices "$SLURM_NTASKS_PER_NODE" --trainer.strategy ddp
code=$?
# 138 is SIGUSR1: the run has saved, and the job starts again. A cancelled job ends.
if [ $code -eq 138 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
