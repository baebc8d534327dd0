"""Arguments of a Ray Serve application are those of `slipstream serve`, and nothing is ignored."""

from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError
from ray.serve.exceptions import BackPressureError

from slipstream.cli.ray_serve import build
from slipstream.serve.ray.application import ROUTER
from slipstream.serve.ray.front import refusal
from tests.unit.cli.world import World, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("ray"))


def deployments(args):
    """The front's and the engine's, with what each is made with."""
    front = build(args)._bound_deployment
    return front, front.init_args[0]._bound_deployment


def test_a_replica_takes_a_gpu_for_each_rank_or_a_core(world: World):
    for more, seat in (
        ({"tp": 4}, {"num_cpus": 1, "num_gpus": 4}),
        ({}, {"num_cpus": 1, "num_gpus": 1}),
        ({"device": "cpu", "tp": "2"}, {"num_cpus": 2}),
    ):
        _, engine = deployments({"model": world.model, **more})
        found = engine.ray_actor_options
        assert {name: found[name] for name in seat} == seat
        assert ("num_gpus" in found and found["num_gpus"] > 0) == ("num_gpus" in seat)


def test_arguments_are_options_typed_or_as_text(world: World):
    args = {"model": world.model, "draft": world.draft, "steps": "3", "warm_up": "false", "log_prompts": True}
    args |= {"prefix_cache": False, "served_model_name": ["a", "b"], "max_requests": 7, "drain_seconds": 9}
    args |= {"api_key": "k", "target_requests": 5, "min_replicas": 2, "max_replicas": "3"}
    front, engine = deployments(args)
    http, settings = engine.init_args
    assert (settings.llm["steps"], settings.llm["prefix_cache"], settings.warm_up) == (3, False, False)
    assert (http.served_names, http.log_prompts, http.max_requests) == (("a", "b"), True, 7)
    assert (engine.max_ongoing_requests, engine.max_queued_requests) == (7, 7)
    config = engine._deployment_config
    scaling = config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (2, 3, 5)
    assert config.graceful_shutdown_timeout_s > 9
    assert front.init_args[1].api_keys == ("k",)  # keys are looked at there ...
    assert http.api_keys == ()  # ... and not again


def test_the_router_is_ray_serves_own(world: World):
    _, engine = deployments({"model": world.model, "max_batch": 4})
    config = engine._deployment_config.request_router_config
    assert config.request_router_class == ROUTER
    router = config.get_request_router_class()
    assert f"{router.__module__}.{router.__name__}" == ROUTER
    assert config.request_router_kwargs["imbalanced_threshold"] == 4


def test_paths_hold_in_any_folder(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(Path(world.model).parent)
    _, engine = deployments({"model": "model", "draft": "draft", "served_model_name": "tiny"})
    _, settings = engine.init_args
    assert (settings.llm["model"], settings.llm["draft"]) == (world.model, world.draft)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"stepz": 3}, "stepz is no argument here"),
        ({"port": 80}, "the port is Ray Serve's"),
        ({"profile_dir": "x"}, "slipstream serve --profile-dir"),
        ({"steps": "many"}, "steps"),
        ({"log_prompts": "perhaps"}, "log_prompts is true or false, not 'perhaps'"),
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas 3 and max_replicas 2"),
        ({"min_replicas": 0}, "from 1 up"),
        ({"target_requests": 0}, "target_requests must be above 0"),
        ({"executor": "ray"}, "deploy/kubernetes/leaderworkerset.yaml"),
        ({"model": "nowhere"}, "is not a model"),
        ({"max_requests": 0}, "--max-requests must be 1 or more"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(world: World, more, words):
    with pytest.raises(ValueError, match=words):
        build({"model": world.model, **more})


def test_clients_are_told_why_there_is_no_answer():
    told = [
        refusal(error).body["error"]["code"] for error in (TimeoutError(), BackPressureError(1, 1), ActorDiedError())
    ]
    assert told == ["timeout", "too_many_requests", "engine_dead"]
