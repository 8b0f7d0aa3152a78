"""`vitrail inspect`: what a checkpoint is, and what may be wrong with it."""

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from vitrail.cli.convert import Format
from vitrail.cli.options import Activation, AttentionScale, Ema, Heads, Json, NormEps, Pooling, Size, parse_size
from vitrail.cli.printing import SteadyConsole, print_json
from vitrail.wording import counted

if TYPE_CHECKING:
    from vitrail.model import ViTConfig
    from vitrail.weights.checkpoint import Checkpoint
    from vitrail.weights.diagnose import Warning as Finding

UNUSABLE = 1


def inspect(
    source: str,
    *,
    source_format: Annotated[Format | None, Parameter(name="--from")] = None,
    image_size: Size = None,
    heads: Heads = None,
    pooling: Pooling = None,
    activation: Activation = None,
    norm_eps: NormEps = None,
    ema: Ema = None,
    attention_scale: AttentionScale = None,
    as_json: Json = False,
) -> int:
    """Show what a checkpoint is, and what may be wrong with it; exit code 1 if it cannot work as it is.

    Parameters
    ----------
    source
        A file, a folder, hf://owner/name or google://NAME.
    source_format
        The format of the source, where its keys do not tell.
    image_size
        The size of its pictures, where the file does not tell (not square).
    """
    from vitrail.weights.diagnose import diagnose
    from vitrail.weights.infer import Hints
    from vitrail.weights.opening import open_checkpoint

    hints = Hints(
        heads=heads,
        image_size=parse_size(image_size),
        pooling=pooling,
        activation=activation,
        norm_eps=norm_eps,
        ema=ema,
        attention_scale=attention_scale,
    )
    checkpoint = open_checkpoint(source, format_name=source_format, hints=hints, allow_pickle=True)
    findings = diagnose(checkpoint)
    if as_json:
        print_json(_facts(checkpoint, findings))
    else:
        _print(source, checkpoint, findings)
    return UNUSABLE if any(finding.severity == "error" for finding in findings) else 0


def _facts(checkpoint: "Checkpoint", findings: "list[Finding]") -> dict[str, Any]:
    from vitrail.schema import to_dict

    return {
        "format": checkpoint.file_format,
        "config": to_dict(checkpoint.config),
        "parameters": _parameters(checkpoint),
        "preprocess": to_dict(checkpoint.preprocess),
        "classes": checkpoint.classes,
        "origin": to_dict(checkpoint.origin),
        "warnings": [to_dict(finding) for finding in findings],
    }


def _parameters(checkpoint: "Checkpoint") -> int:
    return sum(tensor.numel() for tensor in checkpoint.tensors.values())


def _print(source: str, checkpoint: "Checkpoint", findings: "list[Finding]") -> None:
    console = SteadyConsole(highlight=False, markup=False)
    table = Table(box=None, show_header=False)
    for name, value in _rows(checkpoint):
        table.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    console.print(source, style="bold")
    console.print(table)
    for finding in findings:
        style = {"error": "red", "warning": "yellow", "note": ""}[finding.severity]
        console.print(Text(f"{finding.severity}: ", style=style) + Text(finding.message), soft_wrap=True)


def _rows(checkpoint: "Checkpoint") -> list[tuple[str, str]]:
    config, spec, origin = checkpoint.config, checkpoint.preprocess, checkpoint.origin
    stem = "" if config.stem.kind == "patch" else f" of a {config.stem.kind} stem's output"
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in checkpoint.tensors.values()})
    squashed = "×".join(map(str, spec.resized(*spec.size)))
    resize = {"squash": f"squashed to {squashed}", "shortest": "shortest side"}[spec.resize]
    if spec.resize == "shortest" or spec.crop != 1.0:
        resize += f", then centre crop to {spec.size[0]}×{spec.size[1]}"
    spelling = "".join(f", {key} {value!r}" for key, value in origin.dialect.items())
    rows = [
        ("format", checkpoint.file_format),
        ("picture", f"{config.channels}×{config.image_size[0]}×{config.image_size[1]}"),
        ("patches", f"{config.patch_size[0]}×{config.patch_size[1]}{stem}, grid {config.grid[0]}×{config.grid[1]}"),
        ("encoder", _encoder(config)),
        ("block", _block(config)),
        ("tokens", _tokens(config)),
        ("pooling", config.pooling + (f", representation {config.representation}" if config.representation else "")),
        ("classes", _classes(checkpoint)),
        ("parameters", f"{_parameters(checkpoint):,} ({', '.join(kinds)})"),
        ("preprocessing", f"{resize}, {spec.interpolation}"),
        ("", f"mean {_numbers(spec.mean)}, std {_numbers(spec.std)}"),
        ("origin", origin.format + spelling),
    ]
    if origin.source:
        rows.append(("", origin.source))
    return rows + [("sha256", f"{value} {name}") for name, value in origin.sha256.items()]


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
    extras = [("[cls]", config.class_token), (counted(config.registers, "register"), config.registers > 0)]
    names = " + ".join([*(name for name, there in extras if there), "patches"])
    return f"{config.tokens}: {names}; positions {config.positions.kind}"


def _classes(checkpoint: "Checkpoint") -> str:
    names = checkpoint.classes or ()
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"{checkpoint.config.num_classes}" + (f": {shown}" if shown else "")


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.4g}" for value in dict.fromkeys(values))
