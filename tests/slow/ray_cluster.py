"""Run as a program: a Ray cluster within this process's family, and on it what `serve run FILE` runs.

Each line of stdin is JSON, arguments with which the application is deployed anew. At its end the cluster goes.
"""

import json
import sys

import ray
from ray import serve
from ray.serve.scripts import run

from slipstream.cli.ray_serve import build

STORE_BYTES = 100 << 20

if __name__ == "__main__":
    ray.init(num_cpus=4, object_store_memory=STORE_BYTES, include_dashboard=False, namespace="serve")
    run.main([sys.argv[1], "--non-blocking"], standalone_mode=False)
    for line in sys.stdin:
        serve.run(build(json.loads(line)), name="slipstream", route_prefix="/")
        print("deployed anew", flush=True)
    serve.shutdown()
    ray.shutdown()
