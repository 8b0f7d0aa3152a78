"""A checkpoint's own library as the reference: does it give the same outputs from the files themselves?

What the library builds comes from the files: transformers reads the folder's `config.json` and image processor, timm
the architecture, its arguments and the transform of its `config.json`. Only if files say nothing (torchvision's, and
timm's without a `config.json`) is the model built as we understood it.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor, nn

from vitrail.data.transform import prepare
from vitrail.errors import MissingExtraError, WeightsError
from vitrail.model import ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign import timm
from vitrail.weights.foreign.huggingface_config import class_of
from vitrail.weights.foreign.huggingface_family import Answer
from vitrail.weights.foreign.timm_architecture import architecture_of
from vitrail.weights.foreign.timm_preprocess import last_width, write_data
from vitrail.weights.keys import write_tensors
from vitrail.weights.proof import Agreement, What, agree, same_pixels
from vitrail.weights.tensor_files import read_contents, read_pickle, write_safetensors

LIBRARIES = {"hf": "transformers", "timm": "timm", "torchvision": "torchvision"}
NO_LIBRARY = "no library that runs on PyTorch reads {}; omit `verify_with_peer=`."
GREY_LEVEL = 1.01 / 255  # of pixels in [0, 1]: processors without AVX2 round a byte differently


def agree_with_peer(
    checkpoint: Checkpoint,
    path: Path,
    expected: Mapping[What, Tensor],
    images: Tensor,
    photographs: Sequence[Path],
    tolerance: float,
    who: str,
    why: Callable[[], str] = str,
) -> Agreement:
    """Let the library of the files at `path` run them on the same images, and prepare the same photographs.

    Args:
        checkpoint: what we read from the files.
        expected: what their model must give for `images`.
        who: the library's name in errors.
        why: asked for a sentence if the outputs differ.
    """
    photographs = photographs if checkpoint.config.channels == 3 else ()  # libraries open them as RGB
    what: What = "logits" if checkpoint.config.num_classes else "features"
    with torch.inference_mode():
        try:
            answers = build_peer(checkpoint, path)(images)
            pixels = peer_pixels(checkpoint, path, photographs)
        except (WeightsError, MissingExtraError):
            raise
        except Exception as error:  # libraries may raise anything for files that they cannot load
            raise WeightsError(f"{who} cannot run {path}: {error}") from error
    agreement = agree(expected, {what: answers}, tolerance, who, why)
    level = GREY_LEVEL / min(checkpoint.preprocess.std)
    for photograph, theirs in zip(photographs, pixels, strict=False):
        if checkpoint.preprocess.anchor == "corner":  # of what its patches do not fill, the model sees nothing
            theirs = theirs[:, : checkpoint.preprocess.size[0], : checkpoint.preprocess.size[1]]
        if not same_pixels(prepare(photograph, checkpoint.preprocess), theirs, level):
            raise WeightsError(
                f"{who} prepares {photograph.name} differently from us ({checkpoint.preprocess}). Nothing was written."
            )
    return agreement


def peer_pixels(checkpoint: Checkpoint, path: Path, photographs: Sequence[Path]) -> list[Tensor]:
    """The photographs as the model of the files at `path` would see them; none where the files do not say how."""
    if checkpoint.file_format == "hf":
        return _prepare_transformers(path, photographs)
    return _prepare_timm(path, photographs) if checkpoint.file_format == "timm" else []


def build_peer(checkpoint: Checkpoint, path: Path) -> nn.Module:
    """The model of the files at `path` in their own library, in eval mode: pictures in, logits or features out."""
    build = {"hf": _build_transformers, "timm": _build_timm, "torchvision": _build_torchvision}
    return build[checkpoint.file_format](checkpoint, path).eval()


def import_peer(name: str) -> Any:
    """One of the libraries; it is an error that says what to do where it is not there or does not load."""
    try:
        _import_torchvision()  # which the two others import where it is installed
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"checking with {name}", "peers") from error
    except (ImportError, RuntimeError) as error:
        raise WeightsError(f"{name} is installed but cannot be imported here: {error}") from error


def _import_torchvision() -> None:
    """torchvision, also where its compiled operators do not load.

    Its wheel may not load them beside a CPU build of torch. It then fails at import while it registers fakes for them,
    and with it transformers and timm. ViTs need none of those operators, so those fakes are left out in a second try.
    """
    if "torchvision" in sys.modules or find_spec("torchvision") is None:
        return
    try:
        import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library: Any = torch.library
        register = library.register_fake

        def skip_torchvision(op: Any, *args: Any, **kwargs: Any) -> Callable[..., Any]:
            if isinstance(op, str) and op.startswith("torchvision::"):
                return _same
            return register(op, *args, **kwargs)

        library.register_fake = skip_torchvision
        try:
            import_module("torchvision")
        finally:
            library.register_fake = register


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class _Answers(nn.Module):
    """A model of transformers, which returns an object, as one that returns a tensor."""

    def __init__(self, model: nn.Module, answer: Answer) -> None:
        super().__init__()
        self.model, self.answer = model, answer

    def forward(self, images: Tensor) -> Tensor:
        inputs, parameters = {"pixel_values": self._fill(images)}, signature(self.model.forward).parameters
        rows, columns = _patch_sizes(self.model)
        if "spatial_shapes" in parameters:
            inputs = _flatten_patches(images, rows)
        elif "noise" in parameters:  # by which MAE orders its patches, at random unless it is given
            inputs["noise"] = torch.arange(images[0, 0].numel() // (rows * columns)).expand(len(images), -1)
        if self.answer == "get_image_features":
            return cast("Any", self.model).get_image_features(**inputs).pooler_output
        output = self.model(**inputs)
        if self.answer == "first token":
            return output.last_hidden_state[:, 0]
        if self.answer in ("mean token", "mean patch"):
            return output.last_hidden_state[:, self.answer == "mean patch" :].mean(dim=1)
        return getattr(output, self.answer)

    def _fill(self, images: Tensor) -> Tensor:
        """With pixels at the right and bottom, where the model expects more than its patches fill."""
        config = cast("Any", self.model).config
        size = getattr(getattr(config, "vision_config", config), "image_size", 0)
        height, width = (size, size) if isinstance(size, int) else size
        missing = height - images.shape[2], width - images.shape[3]
        fits = all(0 <= side < patch for side, patch in zip(missing, _patch_sizes(self.model), strict=True))
        return F.pad(images, (0, missing[1], 0, missing[0])) if fits else images


def _patch_sizes(model: Any) -> tuple[int, int]:
    side: Any = getattr(model.config, "vision_config", model.config).patch_size
    return (side, side) if isinstance(side, int) else tuple(side)


def _flatten_patches(images: Tensor, side: int) -> dict[str, Tensor]:
    """Pictures as SigLIP 2 takes them: patches row by row, each pixel with its channels, and how many there are."""
    rows, columns = images.shape[2] // side, images.shape[3] // side
    cells = images.unflatten(3, (columns, side)).unflatten(2, (rows, side))  # (B, C, rows, side, columns, side)
    shapes = torch.tensor([[rows, columns]]).expand(len(images), 2)
    return {
        "pixel_values": cells.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2),
        "pixel_attention_mask": torch.ones(len(images), rows * columns, dtype=torch.int32),
        "spatial_shapes": shapes,
    }


def _build_transformers(checkpoint: Checkpoint, path: Path) -> nn.Module:
    """The class follows from which weights there are; everything else from the folder's `config.json`."""
    transformers = import_peer("transformers")
    logging = transformers.utils.logging
    showed = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # we show our own
    try:
        return _pick_transformers(transformers, checkpoint.config, path)
    finally:
        if showed:
            logging.enable_progress_bar()


def _pick_transformers(transformers: Any, config: ViTConfig, path: Path) -> nn.Module:
    values = json.loads((path / "config.json").read_text(encoding="utf-8"))
    model, answer = class_of(path, values, config), None
    arguments = dict(model.arguments)
    if model.pooler:
        arguments["add_pooling_layer"] = config.representation is not None
        answer = "pooler_output" if config.representation is not None else None
    kind = getattr(transformers, model.run_as or model.name)
    return _Answers(kind.from_pretrained(path, dtype=torch.float32, **arguments), answer or model.answer)


def _prepare_transformers(path: Path, photographs: Sequence[Path]) -> list[Tensor]:
    if not any((path / name).is_file() for name in ("preprocessor_config.json", "processor_config.json")):
        return []
    processor = import_peer("transformers").AutoImageProcessor.from_pretrained(path)
    if hasattr(processor, "max_num_patches"):  # it keeps the shape of pictures, and ours all have one size
        return []
    return [processor(_open(photograph), return_tensors="pt")["pixel_values"][0] for photograph in photographs]


def _open(photograph: Path) -> Image.Image:
    """A picture, opened as users of these libraries do."""
    with Image.open(photograph) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def _build_timm(checkpoint: Checkpoint, path: Path) -> nn.Module:
    library = import_peer("timm")
    weights = _timm_weights(path)
    if not (weights.parent / "config.json").is_file():
        name, arguments = architecture_of(checkpoint)
        rows = last_width(checkpoint.config)
        return library.create_model(name, num_classes=rows, checkpoint_path=str(weights), **arguments)
    model = library.create_model(f"local-dir:{weights.parent}")  # its architecture and model_args, not ours
    model.load_state_dict(read_contents(weights, allow_pickle=True).tensors)
    return model


def write_architecture(checkpoint: Checkpoint, name: str, folder: Path) -> None:
    """Write a folder from which timm builds its architecture of this name, with the weights of a checkpoint."""
    config = checkpoint.config
    rules = timm.key_table(config, checkpoint.origin.dialect_of("timm"))
    write_safetensors(_timm_weights(folder), write_tensors(rules, checkpoint.tensors), {"format": "pt"})
    facts = {
        "architecture": name,
        "num_classes": last_width(config),
        "model_args": {"img_size": list(config.image_size)},
        "pretrained_cfg": write_data(checkpoint),
    }
    (folder / "config.json").write_text(json.dumps(facts), encoding="utf-8")


def _timm_weights(path: Path) -> Path:
    return path / "model.safetensors" if path.is_dir() else path


def _prepare_timm(path: Path, photographs: Sequence[Path]) -> list[Tensor]:
    folder = _timm_weights(path).parent
    if not (folder / "config.json").is_file():
        return []
    facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "pretrained_cfg" not in facts:
        return []
    library = import_peer("timm")
    model = library.create_model(f"local-dir:{folder}")
    transform = library.data.create_transform(**library.data.resolve_data_config({}, model=model))
    return [transform(_open(photograph)) for photograph in photographs]


def _build_torchvision(checkpoint: Checkpoint, path: Path) -> nn.Module:
    config = checkpoint.config
    torchvision = import_peer("torchvision")
    model = torchvision.models.VisionTransformer(
        image_size=config.image_size[0],
        patch_size=config.patch_size[0],
        num_layers=config.depth,
        num_heads=config.heads,
        hidden_dim=config.width,
        mlp_dim=config.hidden_width,
        num_classes=config.num_classes,
        representation_size=config.representation,
    )
    model.load_state_dict(read_pickle(path))
    return model
