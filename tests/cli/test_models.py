import json

import pytest

from vitrail.cli.main import main
from vitrail.model import variants


def test_the_table_has_every_variant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in variants())
    row = next(line for line in printed.splitlines() if "vit-b16" in line)
    assert row.split() == ["vit-b16", "224", "16", "12", "768", "3072", "12", "86.6", "M", "17.56"]


def test_json_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    facts = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert facts["vit-h14"]["parameters"] == 632_045_800
