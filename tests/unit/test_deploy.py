"""The files in deploy/ say only what slipstream, torchrun and Ray Serve understand."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema
from torch.distributed.run import get_args_parser

from slipstream.cli.main import VERBS, LazyVerb, Verb
from slipstream.cli.ray_serve import build
from slipstream.serve.http.client import END_S
from slipstream.serve.http.server import LAST_WORDS_S
from tests.unit.cli.world import make_world

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def manifests() -> tuple[dict[str, Any], dict[str, Any]]:
    """The LeaderWorkerSet's spec and the Service's."""
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes/leaderworkerset.yaml").read_text()))
    assert [each["kind"] for each in found] == ["LeaderWorkerSet", "Service"]
    return found[0]["spec"], found[1]["spec"]


def pods(spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    template = spec["leaderWorkerTemplate"]
    return template["leaderTemplate"], template["workerTemplate"]


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["spec"]["containers"]
    return found


def serve_arguments(command: list[str]) -> dict[str, str]:
    """What follows `slipstream serve`, by its name."""
    return dict(each.split("=", 1) for each in command[command.index("serve") + 1 :])


def test_torchrun_reads_its_flags_and_brings_two_pods_together(manifests):
    for pod in pods(manifests[0]):
        program, *arguments = container(pod)["command"]
        assert program == "torchrun"
        found = get_args_parser().parse_args([each.replace("$(LWS_WORKER_INDEX)", "1") for each in arguments])
        assert (found.nnodes, found.node_rank) == ("$(LWS_GROUP_SIZE)", 1)
        assert found.master_addr == "$(LWS_LEADER_ADDRESS)"
        assert int(found.nproc_per_node) == container(pod)["resources"]["limits"][GPU]
        assert (found.module, found.training_script, found.training_script_args[0]) == (True, "slipstream", "serve")


def test_slipstream_serve_knows_every_flag(manifests):
    verb = VERBS["serve"]
    assert isinstance(verb, Verb)
    known = {name for each in LazyVerb("serve", verb).load().params for name in (*each.opts, *each.secondary_opts)}
    for pod in pods(manifests[0]):
        given = serve_arguments(container(pod)["command"])
        assert set(given) <= known
        assert "--tp" not in given  # the launcher says it


def test_both_pods_run_the_same_command(manifests):
    leader, worker = map(container, pods(manifests[0]))
    for name in ("command", "image", "lifecycle", "resources", "volumeMounts"):
        assert leader[name] == worker[name]


def test_probes_ask_paths_that_want_no_key_at_the_port_that_is_served(manifests):
    spec, service = manifests
    leader = container(pods(spec)[0])
    ports = {each["name"]: each["containerPort"] for each in leader["ports"]}
    assert str(ports["http"]) == serve_arguments(leader["command"])["--port"]
    assert {leader[f"{name}Probe"]["httpGet"]["port"] for name in ("startup", "liveness", "readiness")} == {"http"}
    assert leader["livenessProbe"]["httpGet"]["path"] == leader["startupProbe"]["httpGet"]["path"] == "/health"
    assert leader["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert service["ports"][0]["targetPort"] == "http"
    labels = {**pods(spec)[0]["metadata"]["labels"], "leaderworkerset.sigs.k8s.io/name": "slipstream"}
    assert service["selector"].items() <= labels.items()
    assert "livenessProbe" not in container(pods(spec)[1])  # a worker has no port


def test_pods_live_as_long_as_answers_may_take_to_drain(manifests):
    for pod in pods(manifests[0]):
        drain_s = float(serve_arguments(container(pod)["command"])["--drain-seconds"])
        assert pod["spec"]["terminationGracePeriodSeconds"] >= drain_s + LAST_WORDS_S + END_S
        assert "preStop" in container(pod)["lifecycle"]


def test_the_key_comes_from_a_secret_and_shared_memory_is_large(manifests):
    (key,) = container(pods(manifests[0])[0])["env"]
    assert key["name"] == "SLIPSTREAM_API_KEY"
    assert "secretKeyRef" in key["valueFrom"]
    for pod in pods(manifests[0]):
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        mounts = {each["mountPath"]: each["name"] for each in container(pod)["volumeMounts"]}
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"


def test_the_ray_serve_file_is_what_ray_serve_and_the_builder_read(tmp_path: Path):
    schema = ServeDeploySchema.model_validate(yaml.safe_load((DEPLOY / "ray-serve.yaml").read_text()))
    (application,) = schema.applications
    assert application.import_path == f"{build.__module__}:{build.__name__}"
    world = make_world(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    here = {"model": world.model, "draft": world.draft, "api_key_file": str(keys)}
    assert application.args.keys() >= here.keys()
    engine = build({**application.args, **here})._bound_deployment.init_args[0]._bound_deployment
    assert engine.ray_actor_options["num_gpus"] == application.args["tp"]
