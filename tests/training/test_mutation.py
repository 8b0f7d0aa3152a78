"""Damaged files of a run folder are read or refused with a clear error: no traceback, no hang, no flood of memory."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fuzzing import attack, cases, damaged, mutate, twist
from vitrail.data import Dataset
from vitrail.data.source import FileSource
from vitrail.data.split import read_split, write_split
from vitrail.ranks import Ranks
from vitrail.schema import to_dict
from vitrail.training.curves import Choice, append_row, draw_curves, keep_rows, read_rows
from vitrail.training.run_data import keep_own, read_split_rows
from vitrail.training.run_folder import read_config
from vitrail.training.setup import prepare_run, training_loader
from vitrail.training.snapshots import STATE, BudgetPlan, RunState, _checksum, pick_whole, read_state, save

from .conftest import part_of_digits, quick_config
from .test_curves import row
from .test_snapshots import tensors

pytestmark = pytest.mark.fuzz

CASES = cases(100)


def resign(data: bytes, draw: random.Random) -> bytes:
    """A state that was changed by somebody who knows how to sum it up."""
    facts: Any = twist(json.loads(data), draw)
    if not isinstance(facts, dict):
        return json.dumps(facts).encode()
    facts = {name: value for name, value in facts.items() if name != "crc32"}
    return json.dumps({**facts, "crc32": _checksum(facts)}).encode()


@pytest.mark.parametrize("change", [mutate, resign])
def test_state(change: Any, tmp_path: Path) -> None:
    config = quick_config()
    setup = prepare_run(config, part_of_digits(config))
    loader = training_loader(setup, Ranks())
    plan = BudgetPlan(epochs=7, curve_steps=70, step=12, position=9.5)
    state = {**loader.state_dict(), "broken": {"a/b.png": "cannot be read"}}
    state = RunState(step=7, epoch=0, loss_count=7, loss_sum=3.5, best_loss=0.5, plan=plan, loader=state)
    path = save(tmp_path, tensors(1.0), state, Ranks())
    old = json.loads((path / STATE).read_text())
    originals = [(path / STATE).read_bytes()]
    if change is mutate:
        originals.append(json.dumps({"version": 1, "world_size": 1, "progress": old["progress"]}).encode())

    def read(data: bytes) -> None:
        (path / STATE).write_bytes(data)
        pick_whole(tmp_path, set())
        loader.load_state_dict(read_state(path).loader)

    outcomes = attack(read, damaged(originals, change), CASES)
    assert outcomes["refused"] > CASES / 2


@pytest.mark.draws
def test_results(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    for epoch in range(1, 6):
        append_row(path, row(epoch, judged=epoch != 3))
    original = path.read_bytes()
    drawn = 0

    def read(data: bytes) -> None:
        nonlocal drawn
        path.write_bytes(data)
        rows = read_rows(path)
        if rows and drawn < 5:
            draw_curves(rows, tmp_path / "r.png", "", Choice("accuracy", higher=True))
            drawn += 1
        keep_rows(path, 3)

    outcomes = attack(read, damaged([original]), CASES)
    assert outcomes["refused"] > CASES / 4


def test_split(tmp_path: Path) -> None:
    path = tmp_path / "split.csv"
    keys = [f"{'ab'[index % 2]}/{index}.png" for index in range(12)]
    rows = {"train": [(key, key[0]) for key in keys[:8]], "val": [(key, key[0]) for key in keys[8:]]}
    write_split(path, rows)
    original = path.read_bytes()
    labels = np.array([index % 2 for index in range(12)])
    source = FileSource(list(keys), labels, tmp_path)
    dataset = Dataset(name="data", classes=("a", "b"), splits={"train": source}, made_split=True)

    def read(data: bytes) -> None:
        path.write_bytes(data)
        kept = keep_own(dataset, read_split_rows(path), lambda _: None)
        assert {kept.classes[label] for label in kept.split("train").labels} <= {"a", "b"}

    def read_strictly(data: bytes) -> None:
        path.write_bytes(data)
        read_split(path, keys)

    assert attack(read, damaged([original]), CASES)["refused"] > CASES / 4
    assert attack(read_strictly, damaged([original]), CASES // 4)["refused"] > CASES / 16


def test_config(tmp_path: Path) -> None:
    config = quick_config()
    original = yaml.safe_dump(to_dict(replace(config, data="digits")), sort_keys=False).encode()

    def read(data: bytes) -> None:
        (tmp_path / "config.yaml").write_bytes(data)
        read_config(tmp_path)

    bomb = b"a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: [*c,*c]\n"
    dates = b"start: 2001-99-99\nseed: !!int " + b"9" * 5000
    assert attack(read, damaged([original, bomb, dates]), CASES // 4)["refused"] > CASES / 20
