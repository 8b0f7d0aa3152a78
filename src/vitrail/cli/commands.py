"""From verbs to commands: the signature and the docstring of a verb's function become its arguments, flags and help.

`commands.verb_predict`, which cyclopts asks for when it is needed, is the command of `VERBS["predict"]`; so only the
module of the verb that runs is loaded, and none for `vitrail --help`.
"""

import ast
import dataclasses
import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from cyclopts import App, Group, Parameter, Token

from vitrail.cli.printing import show
from vitrail.cli.usage import as_flags, describe_unknown_option
from vitrail.errors import ConfigError
from vitrail.verbs import VERBS, Output, Verb

UNSET: Any = object()  # not None, which is a value that can be passed: --clip none
HIDDEN = ("progress", "say", "on_ready")  # arguments that the command itself passes
PREFIX = "verb_"  # of the names in this module that are commands
UNIONS = (Union, types.UnionType)
JSON_HELP = "Print JSON instead of a table, for programs."
JSON = Annotated[bool, Parameter(name="--json", negative=(), show_default=False, help=JSON_HELP)]
MODEL_HELP = "The checkpoint; every positional argument is then a picture [default: the bundled cifar10]."
# Config → the heading of its flags in `--help`, in this order, after those of the verb itself.
HEADINGS = {
    "Start": "Model",
    "Pretraining": "Masked patches",
    "Optim": "Optimiser",
    "Schedule": "Schedule",
    "Augment": "Augmentation",
    "Distill": "Distillation",
    "Selection": "Folds and search",
    "DataConfig": "Data",
    "Machine": "Machine",
    "ServeSettings": "Service",
    "Hints": "What the file does not tell",
}


def __getattr__(name: str) -> Any:
    verb = VERBS.get(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None
    if verb is None:
        raise AttributeError(name)
    return (build_group if verb.verbs else build_command)(name.removeprefix(PREFIX), verb)


def show_examples(commands: Iterable[str]) -> str:
    """The top of a verb's help."""
    return "\n".join(["Examples:", *(f"  {command}" for command in commands)])


def build_group(name: str, verb: Verb) -> App:
    """A verb that has verbs of its own."""
    app = App(name=name, help_format="plaintext", help_prologue=show_examples(verb.examples))
    for inner, each in verb.verbs.items():
        app.command(build_command(f"{name} {inner}", each), name=inner, help=f"{each.line}\n\n{each.about}".strip())
    return app


@dataclasses.dataclass
class _Declared:
    """One argument of a command, beside its name."""

    type: Any
    kind: Any = inspect.Parameter.KEYWORD_ONLY
    default: Any = inspect.Parameter.empty

    def parameter(self, name: str) -> inspect.Parameter:
        return inspect.Parameter(name, self.kind, default=self.default, annotation=self.type)


class Command:
    """A verb's function, what the command does around it, and the arguments that both declare."""

    def __init__(self, name: str, verb: Verb) -> None:
        self.name, self.verb = name, verb
        self.function = _load(verb.home or f"{name}:{name}")
        self.around = _load(verb.command) if verb.command else None
        self.declared = _arguments(self.function, self.around, verb)

    @property
    def flags(self) -> set[str]:
        """How its arguments are typed."""
        return {flag for argument, each in self.declared.items() for flag in _names(argument, each)}


def _load(home: str) -> Callable[..., Any]:
    module, _, attribute = home.partition(":")
    return getattr(import_module(f"vitrail.verbs.{module}"), attribute)


def build_command(name: str, verb: Verb) -> Callable[..., int]:
    """The function that cyclopts calls, with the arguments and the help of the verb's own function."""
    built = Command(name, verb)
    signature = inspect.Signature([each.parameter(argument) for argument, each in built.declared.items()])

    def command(*arguments: Any, **options: Any) -> int:
        return run(built, dict(signature.bind(*arguments, **options).arguments))

    cast("Any", command).__signature__ = signature
    command.__annotations__ = {argument: each.type for argument, each in built.declared.items()}
    command.__name__ = name.replace(" ", "_")
    return command


def run(command: Command, values: dict[str, Any]) -> int:
    """Call a verb with what was typed, and show its result."""
    from vitrail.verbs.call import Out, tell_pictures

    verb, arguments = command.verb, inspect.signature(command.function).parameters
    output = Output(word=partial(as_flags, flags=command.flags), as_json=values.pop("as_json", False))
    flags = values.pop("settings", None)
    several = values.pop(verb.several, ())
    if verb.several == "pictures":
        _refuse_options(several, command)
        pictures = several
        if not verb.first:
            values["model"], pictures = tell_pictures(several, values.get("model"))
        if pictures or arguments["pictures"].default is inspect.Parameter.empty:
            values["pictures"] = pictures
    elif verb.several:
        values["model"] = several or None
    if command.name == "predict" and "out" not in values and getattr(sys.stdout, "name", "") == os.devnull:
        raise ConfigError("standard output is closed, so the predictions would be lost; pass `out=` FILE.")
    if "out" in arguments and arguments["out"].annotation == Out:
        values.setdefault("out", True)
    settings = {} if flags is None else given(flags)
    if command.around is not None:
        own = {name: values.pop(name) for name in own_flags(command.around) if name in values}
        return show(command.around(values | settings, output, **own), output)
    if "progress" in arguments:
        values["progress"] = True
    return show(command.function(**values, **settings), output)


def own_flags(around: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The flags that a command has beside the arguments of its verb."""
    parameters = inspect.signature(around).parameters
    return {name: each for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}


def _arguments(function: Callable[..., Any], around: Callable[..., Any] | None, verb: Verb) -> dict[str, _Declared]:
    """The arguments of a verb as those of a command, in the order that Python wants."""
    texts = argument_texts(function)
    places: dict[str, _Declared] = {}
    flags: dict[str, _Declared] = {}
    signature = inspect.signature(function).parameters
    if verb.first:
        places[verb.first] = _declare(signature[verb.first], texts[verb.first], verb)
    if verb.several:
        text = texts[verb.several.rstrip("s") if verb.several == "models" else verb.several]
        # A single hyphen is a value; other words with a leading hyphen, which this lets through, are refused later.
        hyphen = Parameter(allow_leading_hyphen=verb.several == "pictures", help=text)
        places[verb.several] = _Declared(Annotated[str, hyphen], inspect.Parameter.VAR_POSITIONAL)
    for argument, each in signature.items():
        if each.kind is each.VAR_KEYWORD:
            flags |= _settings(each.annotation)
        elif argument not in (*HIDDEN, verb.first, verb.several, verb.several[:-1]):
            text = MODEL_HELP if verb.several and not verb.first and argument == "model" else texts.get(argument, "")
            declared = _declare(each, text, verb)
            (flags if declared.kind is each.KEYWORD_ONLY else places)[argument] = declared
    if around is not None:
        texts = argument_texts(around)
        flags |= {argument: _declare(each, texts[argument], verb) for argument, each in own_flags(around).items()}
    if verb.json:
        flags["as_json"] = _Declared(JSON, default=False)
    return places | flags


def _declare(argument: inspect.Parameter, text: str, verb: Verb) -> _Declared:
    """One argument of a function as a flag, or as a positional argument if the function has it so."""
    name, empty = argument.name, argument.empty
    alone = not verb.several or name == verb.first
    positional = argument.kind is argument.POSITIONAL_OR_KEYWORD and alone and name not in verb.flags
    kind, options = flag_type(argument.annotation)
    options["help"] = text
    if argument.default is not True:
        options["negative"] = ()
    if name in verb.flags:
        options["name"] = f"--{verb.flags[name]}"
    for place, (heading, names) in enumerate(verb.headings.items(), 1):
        if name in names.split():
            options["group"] = Group(heading, sort_key=place)
    if name == "list_file":
        options["allow_leading_hyphen"] = True
    default = argument.default if argument.default is not empty or positional else None
    if "[default:" in text or default in (None, False, (), "") or default is empty:
        options["show_default"] = False
    elif kind in LISTS and isinstance(default, tuple):
        options["show_default"] = as_typed
    if default is False and kind is not bool:  # a list that is also a switch
        default = None
    hint = kind if default is not None or kind is bool else kind | None
    place = argument.POSITIONAL_OR_KEYWORD if positional else argument.KEYWORD_ONLY
    return _Declared(Annotated[hint, Parameter(**options)], place, default)


def argument_texts(function: Callable[..., Any]) -> dict[str, str]:
    """Argument → what the docstring says of it, without what is only for Python."""
    _, _, section = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")
    entries = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)[1:]
    texts = {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}
    return {name: re.sub(r"\s*In Python[^.]*\.", "", text) for name, text in texts.items()}


LISTS = {tuple[int, ...]: int, tuple[str, ...]: str, tuple[float, ...]: float}


def flag_type(annotation: Any) -> tuple[Any, dict[str, Any]]:
    """What is typed for an argument, and the options of such a flag: lists have commas, paths come one by one.

    A type that Python takes beside texts, such as a loaded model, is not typed; an annotation that is a text of its own
    names one whose module would be slow to load.
    """
    if isinstance(annotation, str) or annotation in (str, Path):
        return str, {}
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)] if _is_union(annotation) else [annotation]
    for kind in kinds if Path not in kinds else ():
        if get_origin(kind) is Sequence:
            (item, *_) = get_args(kind)
            if _is_union(item):
                return tuple[Path, ...], {"consume_multiple": True}
            listed = tuple[item, ...]
            return listed, list_options(item)
    if {str, Path} & set(kinds) or any(
        not isinstance(kind, type) and get_origin(kind) is not Literal for kind in kinds
    ):
        return str, {"metavar": "PATH"} if Path in kinds and set(kinds) <= {str, Path, bool} else {}
    choices = len(kinds) > 1 and all(get_origin(kind) is Literal for kind in kinds)
    return Union[tuple(kinds)], {"metavar": "CHOICE"} if choices else {}  # noqa: UP007 - of a tuple


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in UNIONS


def list_options(item: Any) -> dict[str, Any]:
    """The options of a flag for a list, which is typed as one word."""
    name = "CHOICE" if get_origin(item) is Literal else str(getattr(item, "__name__", "text")).upper()
    return {"converter": split_list, "n_tokens": 1, "accepts_keys": False, "metavar": f"{name},…"}


def split_list(kind: Any, tokens: Sequence[Token]) -> tuple[Any, ...]:
    """The items of a list, which has commas between them."""
    (token,) = tokens
    name = (token.keyword or "").lstrip("-").replace("-", "_")
    items = [item.strip() for item in token.value.split(",")]
    kinds = [each for each in get_args(kind) if each is not Ellipsis]
    if kinds[0] in (int, float):
        number, such = ("whole numbers", "0,5,-1") if kinds[0] is int else ("numbers", "0.5,1")
        pattern = r"[+-]?\d{1,9}" if kinds[0] is int else r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"
        if not all(re.fullmatch(pattern, item, re.ASCII) for item in items):
            raise ConfigError(f"must be {number} separated by commas, such as {such}; got {token.value!r}.", field=name)
        return tuple(map(kinds[0], items))
    if choices := get_args(kinds[0]):
        for item in items:
            if item not in choices:
                near = get_close_matches(item, choices, n=1)
                hint = f"; did you mean {near[0]}?" if near else "."
                raise ConfigError(f"must be any of {', '.join(choices)}; got {item!r}{hint}", field=name)
    return tuple(item for item in items if item)


def _refuse_options(words: Sequence[str], command: Command) -> None:
    """A picture may be called anything, but a word with a leading hyphen is an option that was mistyped."""
    for word in words:
        if word.startswith("-") and word != "-":
            unknown = describe_unknown_option(word, f"vitrail {command.name}", command.flags)
            raise ConfigError(f"{unknown} A picture of that name is ./{word}")


def _names(argument: str, declared: _Declared) -> set[str]:
    """How an argument is typed."""
    if declared.kind is inspect.Parameter.VAR_POSITIONAL:
        return {argument.upper()}
    if argument == "settings":
        return flags_of_configs(get_args(declared.type)[0])
    (parameter,) = get_args(declared.type)[1:]
    return set(parameter.name) or {_flag(argument)}


def _settings(annotation: Any) -> dict[str, _Declared]:
    """The fields of configs that a verb takes as keywords, as flags."""
    from vitrail.verbs.keywords import PRETRAIN_TEXTS, PretrainSettings, configs_of

    (taken,) = get_args(annotation)
    configs, pretrains = configs_of(taken), taken is PretrainSettings
    by_recipe = any(config.__name__ == "Start" for config in configs)
    default = "the recipe's" if pretrains else "the recipe's, else {}" if by_recipe else "{}"
    own = PRETRAIN_TEXTS if pretrains else {}
    fields = optional_fields(*configs, default=default, only=taken.__annotations__, own=own)
    return {"settings": _Declared(Annotated[fields, Parameter(name="*")], default=fields())}


class _Unchecked:
    """Where pydantic happens to be loaded, cyclopts checks values with it, and would refuse `UNSET`."""

    def __get_pydantic_core_schema__(self, *_: object) -> dict[str, str]:
        return {"type": "any"}


def optional_fields(*configs: type[Any], default: str, only: Iterable[str], own: Mapping[str, str]) -> type[Any]:
    """A dataclass with every field of the configs, unset by default, with the configs' own help texts.

    `default` says what holds for a flag that is not passed; the braces are the field's own default. A verb may take
    `only` some of the fields, and have its `own` text for some of these.
    """
    fields: list[tuple[str, Any, Any]] = []
    known = {field.name for config in configs for field in dataclasses.fields(config)}
    for config in configs:
        hints, texts = get_type_hints(config), field_texts(config)
        group = Group(HEADINGS[config.__name__], sort_key=10 + list(HEADINGS).index(config.__name__))
        for field in dataclasses.fields(config):
            if field.name not in only:
                continue
            shown = "" if field.default in (dataclasses.MISSING, None) else as_typed(field.default)
            text = own.get(field.name, texts.get(field.name, ""))
            text = re.sub(r"`(\w+)`", lambda name: _flag(name[1]) if name[1] in known else name[0], text)
            if shown and shown != "False" and "[default:" not in text:
                text = f"{text.removesuffix('.')} [default: {default.format(shown)}]."
            hint, more = _field_type(hints[field.name])
            parameter = Parameter(help=text, show_default=False, group=group, **more)
            fields.append((field.name, Annotated[hint, parameter, _Unchecked()], dataclasses.field(default=UNSET)))
    flags = dataclasses.make_dataclass("Settings", fields, frozen=True, kw_only=True)
    flags.__module__ = __name__  # cyclopts ignores a dataclass without a module of its own
    return flags


def _field_type(hint: Any) -> tuple[Any, dict[str, Any]]:
    """An image size is typed 384 or 224x320, and a list with commas."""
    if hint == tuple[int, int] | None:
        return str | None, {}
    for kind in (hint, *get_args(hint)):
        if get_origin(kind) is tuple:
            return kind | None, {"negative": (), **list_options(get_args(kind)[0])}
    return (hint, {"negative": ()}) if dataclasses.is_dataclass(hint) else (hint | None, {})


def as_typed(value: Any) -> str:
    """A value as it is typed: the items of a list with commas between them, numbers with four digits."""
    if isinstance(value, tuple):
        return ",".join(as_typed(item) for item in cast("tuple[Any, ...]", value))
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
    return {_flag(field.name) for config in configs for field in dataclasses.fields(config)}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
