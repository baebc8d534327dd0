"""The Ray Serve application: a front, and replicas of an engine behind Ray Serve's own prefix-aware router."""

from dataclasses import dataclass, replace
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig

from slipstream.serve.http.client import END_S
from slipstream.serve.http.settings import EngineSettings, HttpSettings
from slipstream.serve.ray.front import Front
from slipstream.serve.ray.replica import EngineReplica

# Ray publishes it as ray.serve.llm.request_router.PrefixCacheAffinityRouter, which cannot be imported without vLLM.
ROUTER = "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router.PrefixCacheAffinityRouter"
FRONT_REQUESTS = 10_000  # more than replicas take: they refuse with a reason, and Ray Serve's proxy would without
HEALTH_S = 5.0  # between two looks at a replica
STARTS = 3  # of a replica that does not come up, until the application counts as failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many replicas."""

    min_replicas: int
    max_replicas: int
    target_requests: float  # in flight at a replica, which more replicas are to bring about

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise ValueError(
                f"min_replicas {self.min_replicas} and max_replicas {self.max_replicas}: give numbers from 1 up, the"
                " larger one for max_replicas"
            )
        if self.target_requests <= 0:
            raise ValueError(f"target_requests must be above 0, not {self.target_requests}")


def make_application(http: HttpSettings, engine: EngineSettings, scale: Scale) -> Application:
    """What Ray Serve runs. Options of the two deployments, `Front` and `Engine`, can be overridden in its config file.

    Raises:
        ValueError: Ray is to start the ranks, which a replica does itself.
    """
    engines = serve.deployment(
        name="Engine",
        ray_actor_options=seat(engine.llm),
        max_ongoing_requests=http.max_requests,
        max_queued_requests=http.max_requests,
        autoscaling_config=AutoscalingConfig(
            min_replicas=scale.min_replicas,
            max_replicas=scale.max_replicas,
            target_ongoing_requests=scale.target_requests,
        ),
        request_router_config={
            "request_router_class": ROUTER,
            "request_router_kwargs": {"imbalanced_threshold": scale.target_requests, "do_eviction": True},
        },
        health_check_period_s=HEALTH_S,
        graceful_shutdown_timeout_s=http.drain_s + END_S,
        max_constructor_retry_count=STARTS,
    )(EngineReplica)
    front = serve.deployment(
        name="Front",
        max_ongoing_requests=FRONT_REQUESTS,
        graceful_shutdown_timeout_s=http.drain_s + END_S,
    )(Front)
    return front.bind(engines.bind(replace(http, api_keys=()), engine), http)


def seat(llm: dict[str, Any]) -> dict[str, float]:
    """What a replica takes of its node: a GPU for each rank, or a core where the device is cpu."""
    if llm["executor"] != "spawn":
        raise ValueError(
            f"a replica spawns its ranks itself, so --executor {llm['executor']} cannot be; leave it out, or run a"
            " group larger than a node with deploy/kubernetes/leaderworkerset.yaml"
        )
    ranks = llm["tp"] or 1
    return {"num_cpus": ranks} if llm["device"] == "cpu" else {"num_cpus": 1, "num_gpus": ranks}
