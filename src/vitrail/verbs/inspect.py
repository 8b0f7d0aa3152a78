"""`vitrail.inspect`: what a checkpoint is, and likely problems with it."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from vitrail.data.preprocess import Preprocess
from vitrail.errors import AssumptionWarning
from vitrail.model import ViTConfig
from vitrail.schema import to_dict
from vitrail.verbs.hints import read_hints
from vitrail.verbs.settings import HintSettings
from vitrail.weights.catalogue import FormatName
from vitrail.weights.diagnose import Finding, diagnose
from vitrail.weights.facts import Origin
from vitrail.weights.opening import open_checkpoint
from vitrail.weights.trust import Trust
from vitrail.wording import counted, markdown_cell

SHOWN = 5  # names of classes in a row


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The facts about a checkpoint, without its weights, and likely problems with it."""

    source: str
    format: FormatName  # of the file
    config: ViTConfig
    parameters: int
    dtypes: tuple[str, ...]
    preprocess: Preprocess
    classes: tuple[str, ...] | None
    origin: Origin
    trust: Trust | None
    findings: tuple[Finding, ...]

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
            ("classes", _classes(config, self.classes)),
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

    def _repr_markdown_(self) -> str:
        table = [f"| {name} | {markdown_cell(value)} |" for name, value in [("checkpoint", self.source), *self.rows]]
        findings = [f"- **{finding.severity}**: {finding.message}" for finding in self.findings]
        return "\n".join([table[0], "|---|---|", *table[1:], "", *findings])


def inspect(
    source: str | Path, *, source_format: FormatName | None = None, **settings: Unpack[HintSettings]
) -> Inspection:
    """The facts about a checkpoint, and likely problems with it.

    A source is a file, a folder, hf://owner/name or google://NAME; `source_format` names its format if its keys do not
    identify it. The `settings` are the fields of `Hints`, each for something that the source leaves open.
    """
    hints = read_hints(inspect, settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumptionWarning)  # what is assumed is among the findings
        checkpoint = open_checkpoint(source, format_name=source_format, hints=hints, allow_pickle=True)
    tensors = checkpoint.tensors.values()
    return Inspection(
        source=str(source),
        format=checkpoint.file_format,
        config=checkpoint.config,
        parameters=sum(tensor.numel() for tensor in tensors),
        dtypes=tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})),
        preprocess=checkpoint.preprocess,
        classes=checkpoint.classes,
        origin=checkpoint.origin,
        trust=checkpoint.trust,
        findings=tuple(diagnose(checkpoint)),
    )


def _resizing(spec: Preprocess) -> str:
    squashed = "×".join(map(str, spec.resized(*spec.size)))
    resize = {"squash": f"squashed to {squashed}", "shortest": "shortest side"}[spec.resize]
    if spec.resize == "shortest" or spec.crop != 1.0:
        resize += f", then centre crop to {spec.size[0]}×{spec.size[1]}"
    return f"{resize}, {spec.interpolation}"


def _encoder(config: ViTConfig) -> str:
    blocks, heads = counted(config.depth, "block"), counted(config.heads, "head")
    return f"{blocks}, width {config.width}, {heads}, MLP {config.hidden_width}"


def _block(config: ViTConfig) -> str:
    block = config.block
    parts = [block.activation, f"epsilon {block.norm_eps:g}", "qkv with bias" if block.qkv_bias else "qkv without bias"]
    extras = [
        (f"attention scale {block.attention_scale or 0:g}", block.attention_scale is not None),
        ("qk-norm", block.qk_norm),
        ("layer scale", block.layer_scale is not None),
    ]
    return ", ".join([*parts, *(name for name, there in extras if there)])


def _tokens(config: ViTConfig) -> str:
    extras = [("[cls]", config.class_token), (counted(config.registers, "register"), config.registers > 0)]
    names = " + ".join([*(name for name, there in extras if there), "patches"])
    merged = f", merged to {config.block_tokens[-1]} after the last block" if config.merge else ""
    return f"{config.tokens}: {names}{merged}; positions {config.positions.kind}"


def _classes(config: ViTConfig, classes: tuple[str, ...] | None) -> str:
    names = classes or ()
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return f"{config.num_classes}" + (f": {shown}" if shown else "")


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.4g}" for value in dict.fromkeys(values))
