"""The figures: what they show, by what was drawn, and that they stay inside their own state."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation, Text
from PIL import Image

from vitrail import canvas
from vitrail.blocks import encode_figure
from vitrail.canvas import DARK, LIGHT, Theme
from vitrail.data import Dataset
from vitrail.evaluation import plots
from vitrail.evaluation.measurement import Measurement, measure_split
from vitrail.evaluation.plots import mistakes_sheet
from vitrail.evaluation.robustness import Robustness
from vitrail.explanation.paper_figures import Filters, plot_distance, plot_filters, plot_positions
from vitrail.prediction import Predictor
from vitrail.tasks.one_metrics import Confusion, count_pairs, measure
from vitrail.tasks.one_plots import confusion_figure, reliability_figure
from vitrail.tasks.rates import rate


def bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def confusion(matrix: np.ndarray) -> Confusion:
    truth, predicted = np.nonzero(matrix)
    counts = matrix[truth, predicted]
    return count_pairs(np.repeat(predicted, counts), np.repeat(truth, counts), len(matrix))


@pytest.mark.parametrize("count", [2, 30, 31, 100])
def test_confusion_of_few_and_many_classes(count: int, tmp_path: Path) -> None:
    matrix = np.diag(np.arange(1, count + 1))
    matrix[0, 1] = 3
    figure = confusion_figure(confusion(matrix), [f"class $ {label}" for label in range(count)], "a title")
    canvas.save_figure(figure, tmp_path / "a.png")
    axes = figure.axes[0]
    texts = {text.get_text() for text in axes.texts}
    assert texts == ({str(number) for number in range(1, count + 1)} | {"3"} if count <= 30 else set())
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert len(labels) == count
    assert labels[1] == r"class \$ 1"
    with Image.open(tmp_path / "a.png") as image:
        assert min(image.size) > 500


def test_of_very_many_classes_the_most_frequent_mistakes_are_shown(tmp_path: Path) -> None:
    matrix = np.diag(np.full(101, 10))
    matrix[7, 8], matrix[8, 7] = 5, 2
    figure = confusion_figure(confusion(matrix), [f"class {label}" for label in range(101)], "a title")
    canvas.save_figure(figure, tmp_path / "a.png")
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["class 7 → class 8", "class 8 → class 7"]
    assert [bar.get_width() for bar in bars(axes)] == [5, 2]
    assert [text.get_text() for text in axes.texts] == [" 33%", " 17%"]
    assert "2 most frequent mistakes" in axes.get_title(loc="left")
    perfect = confusion_figure(confusion(np.diag(np.full(101, 1))), [str(label) for label in range(101)], "t")
    canvas.save_figure(perfect, tmp_path / "b.png")
    assert "no picture is misclassified" in perfect.axes[0].get_title(loc="left")


def draw_all(theme: Theme) -> dict[str, Figure]:
    names = ["cat", "dog", "owl"]
    curves = {"blur": (rate(50, 100),) * 5}
    similarity = torch.rand(4, 4, 4, 4)
    filters = Filters(pictures=torch.rand(8, 3, 4, 4), what="filters", explained=None)
    calibration = measure(np.log([[0.9, 0.1], [0.6, 0.4]]), [0, 1]).calibration
    return {
        "matrix": confusion_figure(confusion(np.eye(3, dtype=np.int64)), names, "t", theme),
        "pairs": confusion_figure(confusion(np.eye(101, dtype=np.int64)), ["x"] * 101, "t", theme),
        "reliability": reliability_figure(calibration, "t", theme),
        "robustness": plots.robustness_figure(Robustness(clean=rate(9, 10), curves=curves, pictures=10), "t", theme),
        "filters": plot_filters(filters, theme),
        "positions": plot_positions(similarity, "learned", theme),
        "distance": plot_distance(torch.rand(3, 4), 2, (32, 32), theme),
    }


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_figure_is_on_the_themes_paper_and_its_texts_stand_out(theme: Theme) -> None:
    """WCAG's contrast for large text: a text is at least three times as light, or as dark, as what it stands on."""
    for name, figure in draw_all(theme).items():
        assert to_hex(figure.get_facecolor()) == theme.paper, name
        grounds = [theme.paper, *theme.shades[-1:]]
        for text in figure.findobj(Text):
            if text.get_text().strip() and text.get_visible():
                contrast = max(contrast_of(to_rgb(text.get_color()), to_rgb(ground)) for ground in grounds)
                assert contrast >= 3, (name, text.get_text(), text.get_color())


def contrast_of(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    def light(color: tuple[float, ...]) -> float:
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    darker, lighter = sorted((light(one), light(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_names_of_any_script_are_drawn_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canvas, "_installed", lambda: ("DejaVu Serif",))
    figure = confusion_figure(confusion(np.eye(3, dtype=np.int64)), ["日本", "中国", "a"], "한국")
    canvas.save_figure(figure, tmp_path / "a.png")
    encode_figure(lambda _: figure, "the same on a page")
    families = {tuple(label.get_fontfamily()) for label in (*figure.axes[0].get_yticklabels(), figure.axes[0].title)}
    assert families == {("sans-serif", "DejaVu Serif")}


def test_reliability_bars_are_the_accuracy(tmp_path: Path) -> None:
    calibration = measure(np.log([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]]), [0, 1, 0]).calibration
    figure = reliability_figure(calibration, "a title")
    canvas.save_figure(figure, tmp_path / "a.png")
    heights = sorted(bar.get_height() for bar in bars(figure.axes[0]))
    assert heights == [0.5, 1.0]
    assert sum(bar.get_height() for bar in bars(figure.axes[1])) == pytest.approx(1)
    assert "calibration error" in figure.axes[0].get_title(loc="left")
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert not any(legend.overlaps(axes.get_tightbbox()) for axes in figure.axes)  # clear of bars, ticks and titles


def test_robustness_curves(tmp_path: Path) -> None:
    curves = {"blur": tuple(rate(90 - 10 * level, 100) for level in range(5)), "jpeg": (rate(50, 100),) * 5}
    figure = plots.robustness_figure(Robustness(clean=rate(95, 100), curves=curves, pictures=10), "a title")
    canvas.save_figure(figure, tmp_path / "a.png")
    lines = [list(line.get_ydata()) for line in figure.axes[0].lines]
    assert lines[0] == [0.95, 0.9, 0.8, 0.7, 0.6, 0.5]
    places = {text.get_text(): text.xy[1] for text in figure.axes[0].texts if isinstance(text, Annotation)}
    assert abs(places["blur"] - places["jpeg"]) > 0.05  # both end at 50 %, and the names do not overlap


@pytest.mark.parametrize("classes", [0, 3, 30])
def test_maps_colour_by_class(classes: int, tmp_path: Path) -> None:
    points = np.random.default_rng(0).normal(size=(90, 2))
    labels = [f"class {place % classes}" for place in range(90)] if classes else None
    figure = plots.map_figure(points, labels, "a title")
    canvas.save_figure(figure, tmp_path / "a.png")
    drawn = figure.axes[0].collections
    assert len(drawn) == max(classes, 1)
    assert len({tuple(item.get_facecolor()[0]) for item in drawn}) == len(drawn)
    assert (figure.axes[0].get_legend() is not None) == (0 < classes <= 10)


def test_drawing_does_not_touch_matplotlibs_state() -> None:
    code = "import sys, vitrail.evaluation.plots, vitrail.tasks.one_plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.fixture
def answers() -> Measurement:
    logits = np.log([[0.7, 0.2, 0.1], [0.9, 0.09, 0.01], [0.1, 0.1, 0.8], [0.5, 0.4, 0.1]]).astype(np.float32)
    return Measurement(
        data="arrays",
        split="test",
        classes=("a", "b", "c"),
        samples=np.array([4, 5, 6, 8]),
        keys=("k4", "k5", "k6", "k8"),
        logits=logits,
        targets=np.array([0, 2, 0, 1]),
        seconds=2.0,
    )


def test_top_losses_are_mistakes_and_the_worst_first(answers: Measurement) -> None:
    assert answers.results.worst(9).tolist() == [1, 2, 3]
    assert answers.results.worst(1).tolist() == [1]
    assert answers.images_per_second == 2


def test_the_sheet_shows_the_pictures_of_the_mistakes(predictor: Predictor, arrays: Dataset) -> None:
    found = measure_split(predictor, arrays)
    sheet = np.array(mistakes_sheet(found, arrays).convert("RGB"))
    worst = arrays.split("test").picture(int(found.samples[found.results.worst(1)[0]]))
    assert isinstance(worst, np.ndarray | torch.Tensor)
    # The first tile, 20×24 enlarged to a width of 112, begins at the margin, below the heading.
    tile = sheet[50:143, 16:128]
    rows = {tuple(pixel) for line in (9, 10) for pixel in worst[:, line].T.tolist()}  # the middle of the picture
    assert {tuple(pixel) for pixel in tile[46].tolist()} <= rows


def test_a_sheet_without_mistakes(answers: Measurement, arrays: Dataset) -> None:
    right = replace(answers, targets=answers.logits.argmax(axis=1))
    assert mistakes_sheet(right, arrays).height < 150
