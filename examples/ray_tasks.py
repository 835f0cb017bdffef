"""python examples/ray_tasks.py study.toml 2: a campaign as Ray tasks, on two cores of this machine or of a Ray cluster."""

import sys
from concurrent.futures import ThreadPoolExecutor

import ray  # pip install ray

import drsrobust as dr


def task(function, *arguments):
    return ray.get(ray.remote(function).remote(*arguments))


if __name__ == "__main__":
    ray.init(num_cpus=int(sys.argv[2]), include_dashboard=False, log_to_driver=False)
    with ThreadPoolExecutor(int(sys.argv[2])) as threads:
        threads.submit, submit = lambda *call: submit(task, *call), threads.submit
        print(f"{len(dr.read_campaign(sys.argv[1]).run(executor=threads)):,} trials")
