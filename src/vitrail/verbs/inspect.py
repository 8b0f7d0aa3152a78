"""`vitrail.inspect` and `summary`: what a checkpoint is, and one model step by step."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rich.console import RenderableType
from rich.text import Text

from vitrail.errors import AssumptionWarning
from vitrail.progress import table
from vitrail.schema import to_dict
from vitrail.verbs.keywords import HintSettings, Size, read_hints, read_size
from vitrail.weights.resolve import FormatName
from vitrail.wording import counted, markdown_cell

if TYPE_CHECKING:
    from vitrail.data.preprocess import Preprocess
    from vitrail.model import Summary, ViT, ViTConfig
    from vitrail.prediction import Predictor
    from vitrail.tasks.task import Task, Trust
    from vitrail.weights.metadata import Origin
    from vitrail.weights.sanity import Diagnostic

SHOWN = 5  # names of classes in a row


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The facts about a checkpoint, without its weights, and likely problems with it."""

    source: str
    format: FormatName  # of the file
    config: "ViTConfig"
    parameters: int
    dtypes: tuple[str, ...]
    preprocess: "Preprocess"
    classes: tuple[str, ...] | None
    task: "Task"
    origin: "Origin"
    trust: "Trust | None"
    findings: "tuple[Diagnostic, ...]"

    @property
    def usable(self) -> bool:
        """Whether the model can work as it is."""
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def facts(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "format": self.format,
            "config": to_dict(self.config),
            "parameters": self.parameters,
            "preprocess": to_dict(self.preprocess),
            "classes": self.classes,
            "task": to_dict(self.task),
            "origin": to_dict(self.origin),
            "trust": None if self.trust is None else self.trust.facts(),
            "warnings": [to_dict(finding) for finding in self.findings],
        }

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The facts in readable form, each a name and a text; a row without a name continues the one above."""
        config, origin = self.config, self.origin
        stem = "" if config.stem.kind == "patch" else f" of a {config.stem.kind} stem's output"
        spelling = "".join(f", {key} {value!r}" for key, value in origin.dialect.items())
        representation = f", representation {config.representation}" if config.representation else ""
        rows = [
            ("format", self.format),
            ("picture", f"{config.channels}×{config.image_size[0]}×{config.image_size[1]}"),
            ("patches", f"{config.patch_size[0]}×{config.patch_size[1]}{stem}, grid {config.grid[0]}×{config.grid[1]}"),
            ("encoder", _encoder(config)),
            ("block", _block(config)),
            ("tokens", _tokens(config)),
            ("pooling", config.pooling + representation),
            *([("options", options)] if (options := _options(config)) else []),
            *([("task", self.task.kind)] if self.task.kind != "one" else []),
            (self.task.noun[1], _classes(config, self.classes)),
            ("parameters", f"{self.parameters:,} ({', '.join(self.dtypes)})"),
            ("preprocessing", _resizing(self.preprocess)),
            ("", f"mean {_numbers(self.preprocess.mean)}, std {_numbers(self.preprocess.std)}"),
            *self._trust_rows(),
            ("origin", origin.format + spelling),
        ]
        if origin.source:
            rows.append(("", origin.source))
        return rows + [("sha256", f"{value} {name}") for name, value in origin.sha256.items()]

    def _trust_rows(self) -> list[tuple[str, str]]:
        if self.trust is None:
            return [("calibration", "none; vitrail calibrate makes one")]
        return [("calibration", text) if not index else ("", text) for index, text in enumerate(self.trust.describe())]

    @property
    def exit_code(self) -> int:
        """1: the checkpoint cannot work as it is."""
        return 0 if self.usable else 1

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return self.facts

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        yield Text(self.source, style="bold")
        yield table(self.rows)
        for finding in self.findings:
            style = {"error": "red", "warning": "yellow", "note": ""}[finding.severity]
            yield Text(f"{finding.severity}: ", style=style) + Text(finding.message)

    def _repr_markdown_(self) -> str:
        rows = [f"| {name} | {markdown_cell(value)} |" for name, value in [("checkpoint", self.source), *self.rows]]
        findings = [f"- **{finding.severity}**: {finding.message}" for finding in self.findings]
        return "\n".join([rows[0], "|---|---|", *rows[1:], "", *findings])


def inspect(
    source: str | Path, *, source_format: FormatName | None = None, **settings: Unpack[HintSettings]
) -> Inspection:
    """The facts about a checkpoint, and likely problems with it.

    The `settings` are the fields of `Hints`, each for something that the source leaves open.

    Args:
        source: A file, a folder, hf://owner/name or google://NAME.
        source_format: The format of the source, if its keys do not identify it.
    """
    from vitrail.weights.read import open_checkpoint
    from vitrail.weights.sanity import diagnose

    hints = read_hints(inspect, settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumptionWarning)  # what is assumed is among the findings
        checkpoint = open_checkpoint(source, format_name=source_format, hints=hints, allow_pickle=True)
    tensors = checkpoint.parameters.values()
    return Inspection(
        source=str(source),
        format=checkpoint.file_format,
        config=checkpoint.config,
        parameters=sum(tensor.numel() for tensor in tensors),
        dtypes=tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})),
        preprocess=checkpoint.preprocess,
        classes=checkpoint.classes,
        task=checkpoint.task,
        origin=checkpoint.origin,
        trust=checkpoint.trust,
        findings=tuple(diagnose(checkpoint)),
    )


def _resizing(spec: "Preprocess") -> str:
    squashed = "×".join(map(str, spec.resized(*spec.size)))
    resize = {"squash": f"squashed to {squashed}", "shortest": "shortest side"}[spec.resize]
    if spec.resize == "shortest" or spec.crop != 1.0:
        resize += f", then centre crop to {spec.size[0]}×{spec.size[1]}"
    return f"{resize}, {spec.interpolation}"


def _encoder(config: "ViTConfig") -> str:
    blocks, heads = counted(config.depth, "block"), counted(config.heads, "head")
    return f"{blocks}, width {config.width}, {heads}, MLP {config.hidden_width}"


def _block(config: "ViTConfig") -> str:
    block = config.block
    parts = [block.activation, f"epsilon {block.norm_eps:g}", "qkv with bias" if block.qkv_bias else "qkv without bias"]
    extras = [
        (f"attention scale {block.attention_scale or 0:g}", block.attention_scale is not None),
        ("qk-norm", block.qk_norm),
        ("layer scale", block.layer_scale is not None),
    ]
    return ", ".join([*parts, *(name for name, there in extras if there)])


def _tokens(config: "ViTConfig") -> str:
    from vitrail.model.summary import describe_positions, describe_prefix

    names = " + ".join(filter(None, (describe_prefix(config), "patches")))
    merged = f", merged to {config.block_tokens[-1]} after the last block" if config.merge else ""
    return f"{config.tokens}: {names}{merged}; {describe_positions(config)}"


# Fields that have rows of their own.
_OWN_ROWS = """
    image_size patch_size channels width depth heads mlp_width num_classes class_token registers pooling representation
    merge stem rates positions block.qkv_bias block.attention_scale block.qk_norm block.layer_scale block.norm_eps
    block.activation
"""


def _options(config: "ViTConfig") -> str:
    """What else differs from the paper's ViT, by the names of the config's fields."""
    from vitrail.weights.formats import walk

    own = _OWN_ROWS.split()
    others = [
        (path, value)
        for path, value, plain in walk(config, type(config)())
        if value != plain and path not in own and path.partition(".")[0] not in own
    ]
    flags = {True: "", False: "no "}
    return ", ".join(
        f"{flags[value]}{path}" if isinstance(value, bool) else f"{path} {value}" for path, value in others
    )


def _classes(config: "ViTConfig", classes: tuple[str, ...] | None) -> str:
    names = classes or ()
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return f"{config.num_classes}" + (f": {shown}" if shown else "")


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.4g}" for value in dict.fromkeys(values))


def summary(
    model: "str | Path | Predictor | ViT | ViTConfig" = "vit-b16",
    *,
    image_size: Size | None = None,
    num_classes: int | None = None,
) -> "Summary":
    """The shape after each step of a model, its parameters and MACs; nothing is allocated for that.

    Args:
        model: A name from `vitrail models`, a checkpoint (a file, a run folder, hf://owner/name, …), or a YAML file
            with the fields of ViTConfig. In Python, also a model.
        image_size: The size of the pictures: 384, or HEIGHTxWIDTH such as 224x320 [default: the model's own].
        num_classes: Number of classes of the head; 0 for none [default: the model's own].
    """
    from vitrail.model import ViTConfig, summarize
    from vitrail.weights.read import open_config

    asked = {"image_size": read_size(image_size, "image_size"), "num_classes": num_classes}
    changes = {name: value for name, value in asked.items() if value is not None}
    if isinstance(model, str | Path):
        return replace(summarize(open_config(str(model), changes)), name=str(model))
    vit: Any = getattr(model, "model", model)  # of a loaded one
    config: ViTConfig = vit if isinstance(vit, ViTConfig) else vit.config
    return summarize(replace(config, **changes))
