#!/bin/bash
#SBATCH --array=0-7
#SBATCH --cpus-per-task=1
#SBATCH --mem=8G
#SBATCH --time=12:00:00
# sbatch examples/slurm_shards.sh study.toml; then: drsrobust merge study.toml
# A task that is killed goes on when it is submitted again: sbatch --array=3 examples/slurm_shards.sh study.toml
export OMP_NUM_THREADS=1
shards=$((${SLURM_ARRAY_TASK_MAX:-7} + 1))
exec drsrobust campaign "$1" --shard "$SLURM_ARRAY_TASK_ID/${SHARDS:-$shards}" --workers "${SLURM_CPUS_PER_TASK:-1}"
