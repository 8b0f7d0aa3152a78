"""A command is built from its verb's function: each argument is declared once."""

import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import vitrail
from vitrail.cli.commands import Command, own_flags
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


def test_every_command_is_built_from_a_public_function() -> None:
    leaves = {name: verb for name, verb in VERBS.items() if not verb.verbs}
    leaves |= {f"{name} {inner}": each for name, verb in VERBS.items() for inner, each in verb.verbs.items()}
    for name, verb in leaves.items():
        command = Command(name, verb)
        assert getattr(vitrail, command.function.__name__) is command.function, name
        if command.around is not None:
            assert not set(own_flags(command.around)) & set(inspect.signature(command.function).parameters), name
