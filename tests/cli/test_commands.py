"""A command is built from its verb's function: each argument is declared once."""

import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

import pytest

import vitrail
from vitrail.cli.commands import Command, argument_texts, own_flags
from vitrail.cli.main import main
from vitrail.verbs import VERBS, Output, Verb


@dataclass
class Greeting:
    text: str
    exit_code: int = 0

    def lines(self) -> Iterator[str]:
        yield self.text


def greet(name: str, *, times: int = 1, progress: bool = False) -> Greeting:
    """Greet somebody.

    Args:
        name: Whom to greet.
        times: How often. In Python, `range` is no number.
    """
    return Greeting("hello " * times + name)


def run_greet(arguments: dict[str, Any], output: Output, *, loud: bool = False) -> Greeting:
    """`vitrail greet`.

    Args:
        loud: In capitals.
    """
    text = greet(**arguments).text
    return Greeting(text.upper() if loud else output.word(f"{text}, `times=2`?"), exit_code=int(loud))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("vitrail.verbs.greet")
    module.greet, module.run_greet = greet, run_greet
    monkeypatch.setitem(sys.modules, "vitrail.verbs.greet", module)
    monkeypatch.setitem(VERBS, "greet", Verb(line="Greet.", command="greet:run_greet", json=False))


@pytest.mark.usefixtures("toy")
def test_a_verb_and_what_its_command_does_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["greet", "Ann", "--times", "2"]) == 0
    assert capsys.readouterr().out == "hello hello Ann, --times 2?\n"
    assert main(["greet", "Ann", "--loud"]) == 1
    assert capsys.readouterr().out == "HELLO ANN\n"
    assert main(["greet", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("Whom to greet.", "How often. [default: 1]", "In capitals."))
    assert "Python" not in shown
    assert "--progress" not in shown


def commands() -> Iterator[Command]:
    for name, verb in VERBS.items():
        inner = {f"{name} {each}": verb.verbs[each] for each in verb.verbs} or {name: verb}
        yield from (Command(*item) for item in inner.items())


def test_every_command_is_built_from_a_public_function() -> None:
    for command in commands():
        assert getattr(vitrail, command.function.__name__) is command.function, command.name
        if command.around is not None:
            own = set(own_flags(command.around))
            assert not own & set(inspect.signature(command.function).parameters), command.name


# Arguments that mean the same in every verb that has them; editors show docstrings, so each verb has the whole text.
SHARED = ("device", "class_names", "runtime", "precision", "merge", "preprocess", "batch_size", "list_file", "raw")
SHARED += ("source_format", "by_position")
OTHERWISE = {("benchmark", "precision"), ("benchmark", "merge"), ("export", "precision")}


def test_what_is_shared_by_verbs_has_one_text() -> None:
    texts: dict[str, set[str]] = {name: set() for name in SHARED}
    for command in commands():
        for argument, text in argument_texts(command.function).items():
            if argument in texts and (command.name, argument) not in OTHERWISE:
                texts[argument].add(text)
    assert {argument: len(each) for argument, each in texts.items()} == dict.fromkeys(SHARED, 1)


def test_every_argument_has_a_text() -> None:
    for command in commands():
        for argument, each in command.declared.items():
            if argument != "settings":  # whose fields have their own
                (parameter,) = get_args(each.type)[1:]
                assert parameter.help, f"{command.name}: {argument}"
