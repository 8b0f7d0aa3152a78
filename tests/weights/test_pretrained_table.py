"""The table of pretrained weights: every row has its facts, and the default is what it is said to be."""

import re

from vitrail.weights import pretrained
from vitrail.weights.foreign.timm_eva_names import BEIT_NAMES, EVA_NAMES
from vitrail.weights.foreign.timm_names import NAMES
from vitrail.weights.pretrained import COMMERCIAL, FAMILIES, default, find, table, usual_size


def test_every_row_has_its_facts() -> None:
    rows = table()
    assert len({row.repository for row in rows}) == len(rows) > 60
    assert {row.family for row in rows} == FAMILIES.keys()
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", pretrained.AS_OF)
    for row in rows:
        assert row.config.image_size == (row.pixels, row.pixels)
        assert row.megabytes == round(row.parameters * 4 / 1e6)
        assert (row.accuracy is None) == (row.measure == "") == (row.reference == "")
        assert row.accuracy is None or 50 < row.accuracy < 100
        assert row.commercial == (row.licence in COMMERCIAL)
        row.config.grid_of(usual_size(row.config))  # which raises if it cannot be trained at the usual size


def test_the_default_is_for_everybody_and_the_most_accurate_of_its_size() -> None:
    for device, megabytes in (("cpu", 100), ("cuda", 400)):
        row = default(device)
        assert row.commercial
        assert not row.gated
        assert row.megabytes <= megabytes
        assert usual_size(row.config) == (224, 224)
        rivals = [
            other.accuracy
            for other in pretrained.select(commercial=True, ungated=True, max_mb=megabytes)
            if other.measure == row.measure and other.accuracy is not None
        ]
        assert len(rivals) > 1
        assert row.accuracy is not None
        assert row.accuracy >= max(rivals) - 0.25  # percentage points: less than registers make


def test_what_is_not_listed_is_not_found() -> None:
    assert find("anna/flowers") is None
    dino = find("facebook/dinov2-base")
    assert dino is not None
    assert (dino.name, dino.source, dino.megabytes) == ("DINOv2-B", "hf://facebook/dinov2-base", 346)


def test_everything_that_is_listed_can_be_read() -> None:
    """By timm's names, each of which is compared with timm elsewhere; facebook's are in transformers' layout."""
    known = NAMES.keys() | EVA_NAMES.keys() | BEIT_NAMES.keys()
    for row in table():
        owner, _, name = row.repository.partition("/")
        assert owner == "facebook" or name.partition(".")[0] in known, row
