#!/bin/bash
# Trains on two nodes of eight GPUs under SLURM: sbatch scripts/slurm/fit.sh. A job that ends early goes on in
# another one. Change the sizes, the recipe and the data to yours.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=12:00:00
#SBATCH --signal=USR1@120                # enough for --log_every steps and a checkpoint
#SBATCH --requeue
#SBATCH --open-mode=append

srun python -m train fit --config flat --data data/tinystories --run runs/flat --resume auto \
    --trainer.num_nodes 2 --trainer.devices 8 --trainer.strategy ddp
code=$?
# 138 and 143 are SIGUSR1 and SIGTERM: the run has saved, and goes on in another job.
if [ $code -eq 138 ] || [ $code -eq 143 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
