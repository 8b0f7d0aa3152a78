"""`vitrail.models` and `vitrail models` are the same thing through two doors."""

import json

import pytest

import vitrail
from vitrail.cli.main import main
from vitrail.verbs.inspect import models


def test_both_doors_give_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    table = models()
    assert printed == [
        {"name": name, "parameters": summary.parameters, "macs": summary.macs} for name, summary in table.items()
    ]
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [tuple(line.split()) for line in lines[: len(table)]] == [
        tuple(" ".join(cells).split()) for cells in table.rows
    ]
    assert table["vit-b16"].parameters == sum(weight.numel() for weight in vitrail.create("vit-b16").parameters())


def test_it_shows_itself_as_a_table() -> None:
    lines = models()._repr_markdown_().splitlines()
    assert lines[0].startswith("| model | pixels | patch |")
    assert "| vit-b16 | 224 | 16 | 12 | 768 | 3072 | 12 | 86.6 M | 17.56 |" in lines
