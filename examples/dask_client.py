"""python examples/dask_client.py study.toml scheduler:8786: a campaign on the workers of a Dask cluster."""

import sys

from dask.distributed import Client  # pip install "drsrobust[cluster]"

import drsrobust as dr

if __name__ == "__main__":
    with Client(sys.argv[2]) as client:
        table = dr.read_campaign(sys.argv[1]).run(executor=client.get_executor())
    print(f"{len(table):,} trials")
