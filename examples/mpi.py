"""mpiexec -n 3 python -m mpi4py.futures examples/mpi.py study.toml: rank 0 hands out chunks, ranks 1 and 2 compute."""

import sys

from mpi4py.futures import MPIPoolExecutor  # pip install mpi4py mpich

import drsrobust as dr

if __name__ == "__main__":
    with MPIPoolExecutor() as executor:
        table = dr.read_campaign(sys.argv[1]).run(executor=executor)
    print(f"{len(table):,} trials")
