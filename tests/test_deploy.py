"""The container and the manifests of deploy/, as far as they can be checked where no Docker engine or cluster runs.

The Dockerfile is read by a small parser of ours; manifests are held against Kubernetes' own schemas. For KServe's two
resources the shape is written down here, from the types of its API; pods within them are held against Kubernetes'.
"""

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from vitrail.cli.commands import given
from vitrail.cli.main import build_app
from vitrail.errors import ConfigError
from vitrail.serving.settings import ServeSettings

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "USER", "WORKDIR"}
VERSIONS = ("1.30", "1.34")  # of Kubernetes
LOCKED = dict(
    line.lower().replace("_", "-").split("==")
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    if "==" in line
)


def dockerfile() -> Iterator[tuple[str, str]]:
    """Instruction and arguments, with continued lines joined."""
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.strip():
            instruction, _, rest = line.partition(" ")
            yield instruction, rest.strip()


def stages() -> dict[str, list[tuple[str, str]]]:
    """Stage → its instructions, those of the stages that it builds on first."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for instruction, rest in dockerfile():
        if instruction == "FROM":
            image, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()  # pyright: ignore[reportOptionalMemberAccess]
            found[name] = [(instruction, rest), *found.get(image, [])]
        elif name:
            found[name].append((instruction, rest))
    return found


def test_the_dockerfile_is_understood_and_names_what_exists() -> None:
    assert {instruction for instruction, _ in dockerfile()} <= INSTRUCTIONS
    known = set(stages())
    for instruction, rest in dockerfile():
        if instruction == "FROM":
            image = rest.split()[0]
            assert image in known or image == "${BASE}"
        if instruction == "COPY":
            *sources, target = [word for word in shlex.split(rest) if not word.startswith("--")]
            if stage := re.search(r"--from=(\S+)", rest):
                assert stage[1] in known
                assert sources == [target] == ["/opt/vitrail"]
            else:
                assert sources
                assert all((ROOT / source).exists() for source in sources), f"COPY {rest}"


def test_what_is_copied_is_sent_to_the_builder_and_nothing_else() -> None:
    """The Dockerfile's own .dockerignore keeps everything out, then lets in what COPY names."""
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    first, *rest = [line for line in lines if not line.startswith("#")]
    assert first == "*"
    let_in = {line[1:] for line in rest if line.startswith("!")}
    copied = {
        source
        for instruction, arguments in dockerfile()
        if instruction == "COPY" and "--from" not in arguments
        for source in shlex.split(arguments)[:-1]
    }
    assert let_in == copied
    assert not any(fnmatch(secret, pattern) for secret in (".env", ".git", "runs", "key.pem") for pattern in let_in)


@pytest.mark.parametrize("name", ["export", "torch"])
def test_an_image_runs_as_nobody_and_is_watched(name: str) -> None:
    stage = stages()[name]
    told = dict(stage)  # the last of each
    assert told["USER"] == "10001:10001"
    assert told["EXPOSE"] == "8000"
    command = json.loads(told["HEALTHCHECK"].partition("CMD ")[2])
    assert command[:2] == ["python", "-c"]
    ast.parse(command[2])
    assert "http://127.0.0.1:8000/v2/health/live" in command[2]
    assert json.loads(told["ENTRYPOINT"]) == ["vitrail"]
    check_command(json.loads(told["CMD"]))
    assert stage.index(("USER", told["USER"])) < len(stage) - 1  # what comes after it is a copy of finished files
    assert "torch" not in {word for kind, rest in stages()["build-export"] if kind == "RUN" for word in rest.split()}


def test_the_default_image_is_the_last_one() -> None:
    assert list(stages())[-1] == "torch"


def test_every_image_is_built_on_one_digest() -> None:
    (base,) = [rest for kind, rest in dockerfile() if kind == "ARG" and rest.startswith("BASE=")]
    assert re.fullmatch(r"BASE=python:3\.11-slim@sha256:[0-9a-f]{64}", base)
    assert [rest.split()[0] for kind, rest in dockerfile() if kind == "FROM"].count("${BASE}") == 1
    lines = [line for path in DEPLOY.iterdir() for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if "@sha256:" in line] == [f"ARG {base}"]  # and nowhere else


def test_no_step_installs_what_has_no_hash() -> None:
    steps = " && ".join(rest for kind, rest in dockerfile() if kind == "RUN").split(" && ")
    installs = [step for step in steps if "pip " in step]
    assert len(installs) == 6
    for step in installs:
        assert "--require-hashes" in step or {"--no-deps", "--no-index"} <= set(step.split())
        if "--require-hashes" in step:
            assert re.search(r"--requirement deploy/(build|export|torch)\.lock$", step)


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Package → its version and hashes."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    text = re.sub(r"\\\n\s*", "", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    found: dict[str, tuple[str, list[str]]] = {}
    for line in text.splitlines():
        package, version, hashes = re.fullmatch(
            r"([a-z0-9-]+)==(\S+) ((?:--hash=sha256:[0-9a-f]{64} ?)+)", line
        ).groups()  # pyright: ignore[reportOptionalMemberAccess]
        found[package] = (version, hashes.split())
    return found


def test_the_lock_files_are_those_of_the_tested_versions() -> None:
    """As many as the images need; `make lock-images` writes them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    serve = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["serve"]]
    names = (DEPLOY / "requirements-export.txt").read_text(encoding="utf-8").splitlines()
    export = [line for line in names if not line.startswith("#")]
    assert export == sorted(export)
    asked = {
        "build.lock": project["build-system"]["requires"],
        "export.lock": export,
        "torch.lock": [*serve, *export, "onnx", "onnxscript"],
    }
    for name, requirements in asked.items():
        versions = {package: version for package, (version, _) in locked(name).items()}
        assert {re.split("[>=<]", line)[0].lower().replace("_", "-") for line in requirements} <= versions.keys()
        for package in versions.keys() & LOCKED.keys():
            assert versions[package].removesuffix("+cpu") == LOCKED[package], f"{package}: run `make lock-images`"
    assert "torch" not in locked("export.lock")
    torch, hashes = locked("torch.lock")["torch"]
    assert torch.endswith("+cpu")
    assert len(hashes) >= 2  # for Intel and ARM


def check_command(arguments: list[str]) -> None:
    """These are arguments of `vitrail` that it understands, and that can be reached from outside the container."""
    words = [argument.replace("{{.Name}}", "name") for argument in arguments]
    _, bound, ignored, *_ = build_app().parse_known_args(words)
    assert not ignored
    assert len(bound.args) == 1
    flags = given(bound.kwargs["settings"])
    assert ServeSettings(**flags, token="x" * 20).host == "0.0.0.0"
    with pytest.raises(ConfigError, match="requires a token"):
        ServeSettings(**flags)


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_its_manifests(version: str) -> None:
    documents = manifests("kubernetes.yaml")
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)
    assert [document["kind"] for document in documents] == [
        "Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy",
    ]  # fmt: skip


def test_the_manifests_fit_each_other() -> None:
    deployment, service, scaler, budget, policy = manifests("kubernetes.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (
        deployment["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
        budget["spec"]["selector"]["matchLabels"],
        policy["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector == labels
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]  # or applying it again would undo what the scaler did
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    check_container(container, pod["volumes"], 8000)
    longest = ServeSettings().timeout + float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > longest


def check_container(container: dict[str, Any], volumes: list[dict[str, Any]], port: int) -> None:
    """It runs our command with little power, a token from a secret, and probes of addresses that we have."""
    check_command(container["args"])
    assert container["args"][-2:] == ["--port", str(port)]
    (listening,) = container["ports"]
    assert listening["containerPort"] == port
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    token, threads = container["env"]
    assert token == {"name": "VITRAIL_TOKEN", "valueFrom": {"secretKeyRef": {"name": "vitrail", "key": "token"}}}
    assert threads["valueFrom"]["resourceFieldRef"]["containerName"] == container["name"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    for probe in (container["readinessProbe"], container["livenessProbe"]):
        assert probe["httpGet"]["port"] in (port, listening["name"])
    named = {volume["name"] for volume in volumes}
    assert {mount["name"] for mount in container["volumeMounts"]} == named
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


# The fields of KServe's API that we use; a field that is not here is a mistake of ours, or must be added with its type.
def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


TEXT, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 0}
RUNTIME = closed(
    ["containers"],
    supportedModelFormats={
        "type": "array",
        "items": closed(["name"], name=TEXT, version=TEXT, autoSelect={"type": "boolean"}, priority=NUMBER),
    },
    protocolVersions={"type": "array", "items": {"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]}},
    containers={"type": "array", "minItems": 1},  # Kubernetes' own, as are the volumes
    volumes={"type": "array"},
)
SERVICE = closed(
    ["predictor"],
    predictor=closed(
        ["model"],
        minReplicas=NUMBER,
        maxReplicas=NUMBER,
        scaleMetric={"enum": ["cpu", "memory", "concurrency", "rps"]},
        scaleTarget=NUMBER,
        timeout=NUMBER,
        model=closed(
            ["modelFormat"],
            modelFormat=closed(["name"], name=TEXT, version=TEXT),
            runtime=TEXT,
            protocolVersion={"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]},
            storageUri={"type": "string", "pattern": r"^(pvc|gs|s3|hdfs|webhdfs|https?|hf|oci)://"},
        ),
    ),
)


def test_kserve_takes_its_manifests() -> None:
    runtime, service = manifests("kserve.yaml")
    assert (runtime["apiVersion"], runtime["kind"]) == ("serving.kserve.io/v1alpha1", "ServingRuntime")
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    jsonschema.validate(runtime["spec"], RUNTIME)
    jsonschema.validate(service["spec"], SERVICE)
    assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", service["metadata"]["name"])  # KServe's rule
    model = service["spec"]["predictor"]["model"]
    (form,) = runtime["spec"]["supportedModelFormats"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"] == {"name": form["name"], "version": form["version"]}
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    (container,) = runtime["spec"]["containers"]
    assert container["name"] == "kserve-container"  # or KServe does not know which one serves
    check_container(container, runtime["spec"]["volumes"], 8080)
    assert container["args"][1].endswith("=/mnt/models")  # where KServe puts the model
    pod = {"containers": [container], "volumes": runtime["spec"]["volumes"]}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "check"}, "spec": pod}
    kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
