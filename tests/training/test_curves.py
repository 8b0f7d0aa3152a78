"""results.csv and its picture."""

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from faults import check_every_failure
from vitrail.blocks import Paragraph, Plots
from vitrail.errors import DataError
from vitrail.model import ViT, variant
from vitrail.report.sections import training_section
from vitrail.training.config import Optim, Start, TrainConfig
from vitrail.training.curves import (
    Choice,
    EpochRow,
    append_row,
    best_row,
    draw_curves,
    keep_rows,
    learning_rates,
    read_rows,
)
from vitrail.training.optim import group_parameters

ACCURACY = Choice("accuracy", higher=True)


def row(epoch: int, *, judged: bool = True) -> EpochRow:
    return EpochRow(
        epoch=epoch,
        step=10 * epoch,
        lr=0.1 / epoch,
        train_loss=1 / epoch,
        val_loss=0.5 if judged else None,
        metrics={"accuracy": 0.25} if judged else {},
        images_per_second=100.0,
        seconds=1.5 * epoch,
    )


def test_the_best_epoch_is_the_one_whose_weights_are_kept() -> None:
    rows = [row(1), replace(row(2), val_loss=0.4), row(3), replace(row(4), metrics={"accuracy": 0.2})]
    assert best_row(rows, ACCURACY).epoch == 2
    assert best_row([*rows, replace(row(5), val_loss=0.404)], ACCURACY).epoch == 5


def test_rows_come_back(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    rows = [row(1), row(2, judged=False)]
    for each in rows:
        append_row(path, each)
    assert read_rows(path) == rows
    assert read_rows(tmp_path / "none.csv") == []


def test_an_empty_file_gets_its_header(tmp_path: Path) -> None:
    (tmp_path / "results.csv").touch()
    append_row(tmp_path / "results.csv", row(1))
    assert read_rows(tmp_path / "results.csv") == [row(1)]


def test_a_row_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        append_row(folder / "results.csv", row(2))

    check_every_failure(write, tmp_path / "first")
    check_every_failure(write, tmp_path / "second", lambda folder: append_row(folder / "results.csv", row(1)))


def test_a_last_line_that_was_cut_off_is_dropped_and_a_broken_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    for epoch in (1, 2):
        append_row(path, row(epoch))
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert [each.epoch for each in read_rows(path)] == [1]
    path.write_text(whole.replace("1,10,", "one,10,"))
    with pytest.raises(DataError, match="damaged"):
        read_rows(path)


def test_resume_forgets_what_came_after(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    for epoch in (1, 2, 3):
        append_row(path, row(epoch))
    assert [each.epoch for each in keep_rows(path, 2)] == [1, 2]
    assert [each.epoch for each in read_rows(path)] == [1, 2]


@pytest.mark.draws
@pytest.mark.parametrize("judged", [True, False])
def test_the_picture(judged: bool, tmp_path: Path) -> None:
    draw_curves([row(epoch, judged=judged) for epoch in range(1, 6)], tmp_path / "r.png", "a title", ACCURACY)
    with Image.open(tmp_path / "r.png") as picture:
        assert picture.size[0] > 1000
        assert len(set(picture.convert("L").get_flattened_data())) > 50


@pytest.mark.parametrize(
    ("optim", "start", "names"),
    [
        (Optim(optimizer="adamw"), Start(), ["AdamW, all weights"]),
        (Optim(optimizer="muon"), Start(), ["Muon, matrices", "AdamW, the rest"]),
        (Optim(optimizer="sgd", layer_decay=0.75), Start(), ["SGD, last layers", "SGD, first layer"]),
        (Optim(optimizer="adamw"), Start(train="head", weights="x", model=None), ["head"]),
    ],
)
def test_each_group_of_weights_has_its_learning_rate(optim: Optim, start: Start, names: list[str]) -> None:
    model = ViT(variant("compact-8", num_classes=3))
    config = TrainConfig(optim=optim, start=start)
    rates = learning_rates(model, config, model.config.depth)
    assert list(rates) == names
    if start.train == "all":
        groups = [group.lr for group in group_parameters(model, optim, model.config.depth)]
        assert {max(groups), min(groups)} <= set(rates.values())
    section = training_section([row(1), row(2)], rates, "2 epochs", ACCURACY)
    plots = section.blocks[1]
    assert isinstance(plots, Plots)
    plot = plots.plots[-1]
    assert [curve.name for curve in plot.curves] == names
    assert plot.curves[0].points == [(1, 0.1), (2, 0.05)]  # what a row holds is the highest
    assert plot.curves[-1].points[0][1] == pytest.approx(0.1 * min(rates.values()) / max(rates.values()))


def test_the_section_says_that_val_chose_the_epoch() -> None:
    blocks = [training_section(rows, {"all": 1.0}, "done", ACCURACY).blocks[0] for rows in ([row(1)], [row(1), row(2)])]
    one, two = (block.text for block in blocks if isinstance(block, Paragraph))
    assert "val chose the epoch" in two
    assert "chose" not in one
