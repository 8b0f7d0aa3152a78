"""The page: self-contained, small, accessible, and deaf to what names contain."""

import base64
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.blocks import (
    PHOTO_SIDE,
    Curve,
    Drawings,
    EncodedPicture,
    Fact,
    Gallery,
    GalleryTile,
    Listing,
    Numbers,
    Paragraph,
    Plot,
    Plots,
    Report,
    Section,
    Table,
    encode_photo,
)
from vitrail.data import ArraySource, Dataset
from vitrail.data.check.findings import CheckRecord, Trouble
from vitrail.evaluation.measurement import Measurement, measure_split
from vitrail.prediction import Predictor
from vitrail.report.render import MOST_BYTES, render, round_steps, thin
from vitrail.report.sections import check_blocks, data_section, headline, result_section, verdict
from vitrail.tasks.one_scores import worst_first

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=http://evil.example/x.png onerror=alert(1)>',
    "</style><h1>&amp;",
    "line\nbreak\x1b[31m\x00",
    "half \udc80 and \u202e back",
    "$x^2$ {braces} %s",
)
VOID = {"meta", "link", "img", "source", "line", "circle", "polyline", "br"}


class Page(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def check_page(text: str) -> Page:
    """What must hold for every report."""
    assert len(text.encode()) < MOST_BYTES
    page = Page(text)
    assert not {"script", "iframe", "object", "embed", "form", "base"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "srcset", "href"):
            assert attributes.get(name, "#").startswith(("data:", "#")), (tag, name)
    assert all(image["alt"].strip() for image in page.all("img"))
    assert all(svg["aria-label"].strip() for svg in page.all("svg"))
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style
    assert "color-scheme: light dark" in style
    assert {"width=device-width, initial-scale=1"} <= {meta.get("content") for meta in page.all("meta")}
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert [link["href"] for link in page.all("a")] == [f"#{name}" for name in ids]
    return page


def photo(seed: int = 0, size: tuple[int, int] = (900, 700), alt: str = "noise") -> EncodedPicture:
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return encode_photo(Image.fromarray(noise), alt)


def everything(name: str) -> Report:
    """Each kind of block with the same text in every place that takes one."""
    fact = Fact(name=name, value=name, note=name)
    picture = replace(photo(size=(40, 30)), alt=name, caption=name, dark=photo(size=(40, 30)).data)
    blocks = [
        Paragraph(text=name),
        Paragraph(text=name, quiet=True),
        Numbers(facts=[fact]),
        Table(head=(name, name), rows=[(name, name)], note=name, texts=(1,)),
        Drawings(pictures=[picture]),
        Gallery(tiles=[GalleryTile(pictures=[picture, picture], title=name, note=name)]),
        Plots(plots=[Plot(title=name, curves=[Curve(name=name, points=[(1, 2.0), (2, 3.0)])] * 2, across=name)]),
        Listing(text=name),
        Listing(text=name, summary=name),
    ]
    return Report(title=name, verdict=name, facts=[fact], sections=[Section(title=name, blocks=blocks)])


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_a_name_holds_it_stays_a_text(name: str) -> None:
    hostile, harmless = check_page(render(everything(name))), check_page(render(everything("name")))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in harmless.tags]
    whole = "".join(hostile.text)
    assert not re.search("[\x00\x1b\u202e]", whole)
    if name.isprintable():
        assert whole.count(name) >= 15


def test_an_endless_name_is_cut() -> None:
    assert len(render(everything("x" * 100_000))) < 400_000


@pytest.mark.parametrize("count", [0, 3, 60, 600])
def test_the_page_stays_small(count: int) -> None:
    """Noise is the worst that can be compressed."""
    pictures = [photo(seed) for seed in range(min(count, 4))] * (count // 3 + 1)
    tiles = [GalleryTile(pictures=pictures[place : place + 1], title="noise") for place in range(count)]
    huge = [EncodedPicture(data=b"\x89PNG" + bytes(3_000_000), alt="too large", width=10, height=10)] * 2
    blocks = [Drawings(pictures=huge), Gallery(tiles=tiles)]
    text = render(Report(title="large", verdict="", sections=[Section(title="all", blocks=blocks)]))
    page = check_page(text)
    assert "left out to keep the page small: too large" in text
    if 0 < count <= 60:
        assert len(page.all("img")) == count


def test_photos_are_thumbnails_and_tiny_ones_keep_their_pixels() -> None:
    large, tiny = photo(), photo(size=(32, 32))
    assert max(large.width, large.height) == PHOTO_SIDE
    assert large.data.startswith(b"\xff\xd8")
    assert tiny.data.startswith(b"\x89PNG")
    assert tiny.is_tiny
    assert not large.is_tiny


def test_an_evaluation_tells_its_story(predictor: Predictor, arrays: Dataset) -> None:
    found = measure_split(predictor, arrays)
    sections = [data_section(arrays), result_section(found)]
    page = check_page(render(Report(title="t", verdict=verdict("tiny", found), sections=sections)))
    whole = " ".join(page.text)
    rate = found.metrics.top1
    assert f"tiny classifies {rate.value:.2%} of 100 test pictures of arrays correctly" in whole
    assert f"(95 % interval: {rate.low:.2%} to {rate.high:.2%})" in whole
    assert all(name in whole for name in arrays.classes)
    assert len(page.all("img")) == 2
    assert len(page.all("table")) == 2


@pytest.mark.draws
def test_a_thousand_classes(arrays: Dataset) -> None:
    generator = np.random.default_rng(0)
    count = 1000
    classes = tuple(f"class number {place} with a rather long name" for place in range(count))
    targets = generator.integers(0, count, 5_000)
    found = Measurement(
        data="many",
        split="test",
        classes=classes,
        samples=np.arange(len(targets)),
        keys=tuple(map(str, targets)),
        logits=generator.standard_normal((len(targets), count)).astype(np.float32),
        targets=targets,
        seconds=1.0,
    )
    text = render(Report(title="t", verdict=verdict("m", found), sections=[result_section(found)]))
    page = check_page(text)
    assert len(text.encode()) < 2_000_000
    assert len(page.all("tr")) == 41
    assert "40 worst of 1,000 classes" in text
    assert "classes.csv has all of them" in text


@pytest.mark.draws
def test_drawings_have_a_dark_form_and_photographs_do_not(predictor: Predictor, arrays: Dataset) -> None:
    found = measure_split(predictor, arrays)
    gallery = Gallery(tiles=[GalleryTile(pictures=[photo()], title="a photograph")])
    sections = [result_section(found), Section(title="photos", blocks=[gallery])]
    page = check_page(render(Report(title="t", verdict="", sections=sections)))
    sources = page.all("source")
    assert len(sources) == 2
    assert {source["media"] for source in sources} == {"(prefers-color-scheme: dark)"}
    for source, image in zip(sources, page.all("img"), strict=False):
        light, dark = (read_data_url(url) for url in (image["src"], source["srcset"]))
        assert light.size == dark.size
        assert np.array(light.convert("L")).mean() > 128 > np.array(dark.convert("L")).mean()


def read_data_url(url: str) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(url.split(",", 1)[1])))


def test_a_split_that_chose_the_epoch_is_named_wherever_its_figures_are(predictor: Predictor, arrays: Dataset) -> None:
    found = measure_split(predictor, arrays)
    fair = Report(title="t", verdict=verdict("m", found), facts=headline(found), sections=[result_section(found)])
    assert "chose the epoch" not in render(fair)
    chosen = replace(found, chose_epoch=True)
    assert "also chose the epoch" in verdict("m", chosen)
    assert "also chose the epoch" in headline(chosen)[0].note
    section = result_section(chosen)
    assert isinstance(section.blocks[0], Paragraph)
    assert "also chose the epoch" in section.blocks[0].text


def test_what_the_data_check_found_is_told() -> None:
    def text(record: CheckRecord | None) -> str:
        section = Section(title="Data", blocks=check_blocks(record, "my pictures"))
        return " ".join(check_page(render(Report(title="t", verdict="", sections=[section]))).text)

    assert "were not checked before training; vitrail data check my pictures looks for" in text(None)
    assert "looked at 30 pictures, found no problems." in text(CheckRecord(data="d", pictures=30))
    twice = Trouble(severity="error", finding="the same picture in two splits", count=3, example="a/<1>.png")
    grey = Trouble(severity="note", finding="grey", count=9, example="b.png")
    told = text(CheckRecord(data="d", pictures=30, findings=(twice, grey)))
    assert "looked at 30 pictures and made 1 note; training went ahead despite these findings:" in told
    for cell in ("the same picture in two splits", "error", "3", "a/<1>.png"):
        assert cell in told
    assert "grey" not in told


def draw_plot(plot: Plot) -> str:
    """The SVG element on the page; an empty text if there is none."""
    page = render(Report(title="t", verdict="", sections=[Section(title="s", blocks=[Plots(plots=[plot])])]))
    svg = re.search("<svg.*</svg>", page, re.DOTALL)
    return svg[0] if svg else ""


def test_a_legend_stays_inside_its_plot() -> None:
    """Its names stand below one another where they are too long to stand side by side, and the curves make room."""

    def draw(*names: str) -> list[tuple[float, float, str]]:
        curves = [Curve(name=name, points=[(1, 1.0), (2, 2.0)]) for name in names]
        text = draw_plot(Plot(title="rates", curves=curves, named=True))
        found = re.findall(r'<text class="first" x="([\d.]+)" y="([\d.]+)"[^>]*>— ([^<]*)', text)
        assert min(float(y) for y in re.findall(r'y1="([\d.]+)"', text)) > max(float(y) for _, y, _ in found)
        return [(float(x), float(y), name) for x, y, name in found]

    assert [name for *_, name in draw("all weights")] == ["all weights"]
    assert len({y for _, y, _ in draw("training", "validation")}) == 1
    long = draw("Muon, matrices, last layers", "Muon, matrices, first layer", "AdamW, the rest, last layers")
    assert len({y for _, y, _ in long}) == 3
    assert all(x + 7 * len(name) < 340 for x, _, name in long)


def test_the_worst_comes_first_and_the_undefined_last() -> None:
    assert worst_first([0.5, math.nan, 0.1, 0.9]) == [2, 0, 3, 1]


@pytest.mark.draws
def test_curves_survive_what_training_can_do() -> None:
    def draw(*values: float) -> str:
        return draw_plot(Plot(title="loss", curves=[Curve(name="a", points=list(enumerate(values)))]))

    assert draw() == ""
    assert draw(math.nan, math.inf) == ""
    for values in (
        (1.0,),
        (0.0, 0.0),
        (2.0, math.nan, 1.0),
        (1e-12, 1e12),
        (-3.0, -3.0),
        tuple(map(float, range(5000))),
    ):
        text = draw(*values)
        assert "nan" not in text
        assert "inf" not in text
        numbers = [
            float(number)
            for pair in re.findall(r'(?:points|cx|cy|y1)="([^"]+)"', text)
            for number in re.split("[ ,]", pair)
        ]
        assert numbers
        assert all(0 <= number <= 340 for number in numbers)
        assert len(text) < 12_000


def test_axes_hold_the_curve_with_round_steps() -> None:
    assert round_steps(0.52, 2.3) == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.5])
    assert round_steps(0, 0)[0] <= 0 < round_steps(0, 0)[-1]
    for low, high in ((0.1, 0.11), (-5, 3), (1e-9, 2e-9), (0.2, 0.9999)):
        steps = round_steps(low, high)
        assert steps[0] <= low + 1e-12
        assert steps[-1] >= high - 1e-12
        assert len(steps) <= 7
    assert thin([(float(place), 0.0) for place in range(1001)])[-1] == (1000.0, 0.0)


def test_the_data_section_counts_labels_and_describes_numbers() -> None:
    images = torch.zeros(6, 3, 8, 8, dtype=torch.uint8)
    labels = np.array([[1, 1], [1, 0], [0, 0], [0, 1], [1, 0], [1, 1]], dtype=np.uint8)
    values = np.array([[0.0], [2.0], [4.0], [6.0], [8.0], [10.0]], dtype=np.float32)

    def cells(rows: np.ndarray, names: tuple[str, ...], task: str) -> tuple[str, list[Sequence[str]]]:
        source = ArraySource(images, rows, "rows")
        data = Dataset(name="rows", classes=names, splits={"train": source}, task=task)
        section = data_section(data)
        assert check_page(render(Report(title="t", verdict="", sections=[section])))
        text, table = section.blocks[:2]
        assert isinstance(text, Paragraph)
        assert isinstance(table, Table)
        return text.text, [*table.rows]

    assert cells(labels, ("sun", "sea"), "several") == (
        "rows: 6 pictures, 2 labels.",
        [("sun", "4"), ("sea", "3"), ("no label", "1"), ("all pictures", "6")],
    )
    assert cells(values, ("age",), "number") == (
        "rows: 6 pictures, 1 value.",
        [("age", f"5 ± {np.std(values):.3g} (0 to 10)"), ("pictures", "6")],
    )
