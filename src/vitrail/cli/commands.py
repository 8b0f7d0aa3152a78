"""The flags of the command."""

import ast
import dataclasses
import inspect
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_type_hints

from cyclopts import Group, Parameter

from vitrail.errors import ConfigError

Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON instead of a table, for programs.")]
Raw = Annotated[
    bool,
    Parameter(
        negative=(),
        help="Write the cells of CSV files unchanged, for programs. By default, a cell that a spreadsheet would take "
        "for a formula gets a leading apostrophe, and control characters are spelled out.",
    ),
]
Size = str | None  # 384, or HEIGHTxWIDTH such as 224x320
Device = Annotated[str, Parameter(help="Where to compute: auto, cpu, cuda, cuda:1, mps, …")]

Runtime = Annotated[
    Literal["auto", "torch", "onnx", "openvino"],
    Parameter(
        help="What computes; auto: the fastest whose answers equal torch's, measured once if there is enough to do."
    ),
]
Precision = Annotated[
    Literal["float32", "bf16", "auto"],
    Parameter(
        help="The numbers to compute in; auto: bf16, or your int8 export of this model, if it is measured to be faster."
    ),
]

Classes = Annotated[
    Path | None,
    Parameter(
        name="--classes",
        help="A file with the names of the model's classes, one per line in the model's order, or JSON (index → name).",
    ),
]


@dataclass(frozen=True, kw_only=True)
class HintFlags:
    """What a foreign checkpoint may not say, or what the user knows better: `Hints`, as they are typed."""

    image_size: Annotated[
        str | None, Parameter(help="The size of the source's pictures, where the file does not tell (not square).")
    ] = None
    heads: Annotated[int | None, Parameter(help="Number of heads, where the file does not tell.")] = None
    pooling: Annotated[
        Literal["cls", "mean", "map"] | None, Parameter(help="Pooling, instead of what the keys suggest.")
    ] = None
    activation: Annotated[Literal["gelu", "gelu_tanh"] | None, Parameter(help="GELU, instead of the format's own.")] = (
        None
    )
    norm_eps: Annotated[float | None, Parameter(help="LayerNorm's epsilon, instead of the format's own.")] = None
    ema: Annotated[
        bool | None, Parameter(help="Of a torch file with both: take the moving average of the weights, or not.")
    ] = None
    attention_scale: Annotated[
        float | None, Parameter(help="What scores are multiplied with before the softmax, instead of 1 / √(head size).")
    ] = None


NO_HINTS = HintFlags()

Merge = Annotated[
    str | None,
    Parameter(
        help="Merge about this many similar patches away in each block, for speed, such as 8; or a number for each "
        "block, such as 8,8,4,4."
    ),
]


Preprocessing = Annotated[
    str | None,
    Parameter(
        help="For an ONNX file of another tool, how its pictures are prepared: google, timm, timm-imagenet, hf, "
        "torchvision, dinov2 or clip."
    ),
]


def read_merge(text: str | None) -> tuple[int, ...] | None:
    """The numbers of `--merge`."""
    if text is None:
        return None
    numbers = text.split(",")
    if not all(number.isascii() and number.isdecimal() and len(number) < 10 for number in numbers):
        raise ConfigError(f"--merge must be a whole number, or one for each block such as 8,8,4,4; got {text!r}.")
    return tuple(map(int, numbers))


UNSET: Any = object()  # not None, which is a value that can be passed: --clip none


# Config → the heading of its flags in `--help`, in this order, after those of the verb itself.
GROUPS = {
    "Start": "Model",
    "Optim": "Optimiser",
    "Schedule": "Schedule",
    "Augment": "Augmentation",
    "DataConfig": "Data",
    "Machine": "Machine",
    "ServeSettings": "Service",
}


def group_of(config: type[Any]) -> Group:
    """The group that the flags of a config are shown in."""
    return Group(GROUPS[config.__name__], sort_key=1 + list(GROUPS).index(config.__name__))


def optional_fields(
    name: str, *configs: type[Any], skip: tuple[str, ...] = (), default: str = "the recipe's, else {}"
) -> type[Any]:
    """A dataclass with every field of the configs, unset by default, with the configs' own help texts.

    `default` says what holds for a flag that is not passed; the braces are the field's own default.
    """
    fields: list[tuple[str, Any, Any]] = []
    for config in configs:
        hints, texts = get_type_hints(config), field_texts(config)
        for field in dataclasses.fields(config):
            if field.name in skip or dataclasses.is_dataclass(hints[field.name]):
                continue
            shown = _shown_default(field)
            text = texts.get(field.name, "")
            known = "[default:" in text or not shown
            help_text = text if known else f"{text.removesuffix('.')} [default: {default.format(shown)}]."
            parameter = Parameter(help=help_text, show_default=False, group=group_of(config))
            hint = Annotated[_flag_type(hints[field.name]) | None, parameter]
            fields.append((field.name, hint, dataclasses.field(default=UNSET)))
    flags = dataclasses.make_dataclass(name, fields, frozen=True, kw_only=True)
    flags.__module__ = __name__  # cyclopts ignores a dataclass without a module of its own
    return flags


def _flag_type(hint: Any) -> Any:
    """An image size is written 384 or 224x320."""
    return str if hint == tuple[int, int] | None else hint


def _shown_default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING or field.default is None:
        return ""
    return as_typed(field.default)


def as_typed(value: Any) -> str:
    """A value as it is typed: the numbers of a tuple one after the other, with four digits."""
    if isinstance(value, tuple):
        return " ".join(as_typed(item) for item in cast("tuple[Any, ...]", value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@cache
def field_texts(config: type[Any]) -> dict[str, str]:
    """Field → the text below it in the source."""
    tree = ast.parse(inspect.getsource(config)).body[0]
    assert isinstance(tree, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            value = below.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                texts[field.target.id] = " ".join(value.value.split())
    return texts


def given(flags: Any) -> dict[str, Any]:
    """The fields that were passed."""
    values = {field.name: getattr(flags, field.name) for field in dataclasses.fields(flags)}
    return {name: value for name, value in values.items() if value is not UNSET}


def flags_of_configs(*configs: type[Any]) -> set[str]:
    """The flags of the fields of some configs."""
    return {f"--{field.name.replace('_', '-')}" for config in configs for field in dataclasses.fields(config)}
