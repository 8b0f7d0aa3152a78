"""A model repository that Triton and OpenVINO Model Server read: one folder per model, and one file that lists them.

    DIR/config.json             for OpenVINO Model Server: every model of the repository
    DIR/NAME/config.pbtxt       for Triton: what goes in and out, how requests are batched
    DIR/NAME/labels.txt         the class names, which Triton adds to its answers
    DIR/NAME/1/model.onnx       the graph with its preprocessing, which both servers run as it is

There is one graph, not an ensemble of one model that prepares and one that computes: a single file runs in both
servers, needs no Python in them, is proven as a whole before it is shipped, and cannot be paired with another
preprocessing. The price is that Triton batches only pictures of the same size, which on a processor costs little.
"""

import json
import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from vitrail.errors import ConfigError, WeightsError
from vitrail.files import atomic_path
from vitrail.runtimes.manifest import Manifest
from vitrail.runtimes.onnx_runtime import make_session
from vitrail.weights.resolve import CHECKPOINT_SUFFIXES
from vitrail.weights.sidecars import read_json

LISTING, CONFIG, LABELS, MODEL = "config.json", "config.pbtxt", "labels.txt", "1/model.onnx"
MODELS = "model_config_list"  # the key of LISTING under which the models are
RUN_BY = ("onnx", "openvino")  # what Triton and OpenVINO Model Server run graphs with
MAX_BATCH = 8  # pictures; on a processor a larger batch gains nothing and lets everyone wait
MAX_DELAY = 2000  # microseconds that a picture waits for others
MAX_QUEUE = 128  # requests; beyond them Triton refuses at once instead of answering late
TRITON_TYPES = {"tensor(uint8)": "TYPE_UINT8", "tensor(float)": "TYPE_FP32"}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def choose_name(name: str | None, source: str) -> str:
    """The model's name in addresses and folders: as requested, or made from what the model was loaded from."""
    if name is None:
        last = Path(source.rstrip("/")).name
        stem = Path(last).stem if Path(last).suffix in CHECKPOINT_SUFFIXES else last
        return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip(".-_")[:64] or "model"
    if not NAME.fullmatch(name):
        raise ConfigError(
            "is part of addresses and must have 1 to 64 letters, digits, dots, hyphens or underscores and begin "
            f"with a letter or digit; got {name!r}.",
            field="name",
        )
    return name


def check_repository(repository: Path, name: str, *, overwrite: bool) -> None:
    """Refuse a place where the model cannot be written, before there is work to lose."""
    whole = repository.absolute()
    existing = next(path for path in (whole, *whole.parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"must be a folder; {existing} is a file.", field="repository")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{existing} is not writable; choose another folder with `repository=`")
    if existing != whole:
        return
    if not (repository / LISTING).exists() and (others := sorted(item.name for item in repository.iterdir())):
        raise WeightsError(
            f"{repository} is not a model repository: it has no {LISTING} and holds {', '.join(others[:5])}; name "
            "another folder."
        )
    read_listing(repository)
    if not (repository / name).exists():
        return
    if not overwrite:
        raise WeightsError(
            f"{repository / name} exists already; pass `overwrite=True` to replace it, or another `name=`"
        )
    known = {CONFIG, LABELS, "1"}
    content = [item.name for item in (repository / name).iterdir()] if (repository / name).is_dir() else [name]
    if others := sorted(set(content) - known):
        raise WeightsError(
            f"{repository / name} holds other things, which we will not delete: {', '.join(others[:5])}; pass another "
            "`name=`"
        )


def read_listing(repository: Path) -> dict[str, Any]:
    """What OpenVINO Model Server knows of a repository: the content of its config.json."""
    path = repository / LISTING
    if not path.exists():
        return {MODELS: []}
    listing = read_json(path)
    models: Any = listing.get(MODELS)
    if not isinstance(models, list) or not all(_is_entry(entry) for entry in cast("list[Any]", models)):
        raise WeightsError(
            f"{path} is not a configuration of OpenVINO Model Server: it must have a list {MODELS} of models, each "
            "with a config that has a name; name another folder."
        )
    return listing


def _is_entry(entry: Any) -> bool:
    config: Any = cast("dict[str, Any]", entry).get("config") if isinstance(entry, dict) else None
    return isinstance(config, dict) and isinstance(cast("dict[str, Any]", config).get("name"), str)


@contextmanager
def draft_model(repository: Path, name: str) -> Generator[Path]:
    """A folder to write a model to, which becomes part of the repository if all goes well; nothing changes if not."""
    if not repository.exists():
        with atomic_path(repository) as whole:
            (whole / name / MODEL).parent.mkdir(parents=True)
            _write_listing(whole / LISTING, {MODELS: []}, name)
            yield whole / name
        return
    with atomic_path(repository / LISTING) as listing, atomic_path(repository / name) as draft:
        _write_listing(listing, read_listing(repository), name)
        (draft / MODEL).parent.mkdir(parents=True)
        yield draft


def _write_listing(path: Path, listing: dict[str, Any], name: str) -> None:
    others = [entry for entry in listing[MODELS] if entry["config"]["name"] != name]
    entry = {"config": {"name": name, "base_path": name, "target_device": "CPU"}}  # the path is relative to this file
    path.write_text(json.dumps({**listing, MODELS: [*others, entry]}, indent=2) + "\n", encoding="utf-8")


def complete_model(draft: Path, name: str, manifest: Manifest) -> None:
    """Write what the servers need beside the graph, as the graph itself says it."""
    classes = manifest.facts.classes
    if classes is not None:
        (draft / LABELS).write_text("".join(f"{label}\n" for label in classes), encoding="utf-8")
    session = make_session(draft / MODEL, 1)
    labelled = manifest.scores if classes is not None else None
    height, width = manifest.facts.preprocess.size
    text = describe_for_triton(name, session.get_inputs(), session.get_outputs(), labelled, (height, width))
    (draft / CONFIG).write_text(text, encoding="utf-8")


def describe_for_triton(
    name: str, inputs: Sequence[Any], outputs: Sequence[Any], labelled: str | None, size: tuple[int, int]
) -> str:
    """Triton's config.pbtxt for a graph with these inputs and outputs; the output `labelled` gets the class names."""
    (images,) = inputs
    rows = ",\n".join(_tensor(port, LABELS if port.name == labelled else None) for port in outputs)
    return f"""\
name: "{name}"
backend: "onnxruntime"
max_batch_size: {MAX_BATCH}
input [
{_tensor(images)}
]
output [
{rows}
]
# Pictures of one size that arrive within {MAX_DELAY / 1000:g} ms are computed together; a full queue refuses at once.
dynamic_batching {{
  max_queue_delay_microseconds: {MAX_DELAY}
  default_queue_policy {{ max_queue_size: {MAX_QUEUE} }}
}}
# One instance uses all cores. In a container with a CPU limit, set the number of threads to that limit: with 0, ONNX
# Runtime starts one thread for each core of the whole machine.
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "intra_op_thread_count" value {{ string_value: "0" }} }}
# The model is ready only after it has computed something.
model_warmup [
  {{
    name: "one picture"
    batch_size: 1
    inputs {{
      key: "{images.name}"
      value {{ data_type: {TRITON_TYPES[images.type]} dims: [ {size[0]}, {size[1]}, 3 ] random_data: true }}
    }}
  }}
]
"""


def _tensor(port: Any, labels: str | None = None) -> str:
    """One input or output; the first dimension is the batch, which Triton adds itself."""
    sides = ", ".join(str(side) if isinstance(side, int) else "-1" for side in port.shape[1:])
    named = f' label_filename: "{labels}"' if labels else ""
    return f'  {{ name: "{port.name}" data_type: {TRITON_TYPES[port.type]} dims: [ {sides} ]{named} }}'
