import json
from pathlib import Path

import pytest

from families import write_family
from vitrail.cli.main import main
from vitrail.data.preprocess import preset
from vitrail.errors import ConfigError
from vitrail.model.variants import create
from vitrail.verbs.inspect import inspect
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import save_checkpoint

FIXTURE = Path(__file__).parents[1] / "weights" / "fixtures" / "google_token.npz"

OPTIONS = {
    "simple-vit": "no block.proj_bias, block.mlp_bias, pixel_norm, patch_norm",
    "pe-spatial": "pool_norm none, relative.kind rope, relative.base 10000.0, relative.coordinates index, "
    "relative.offset 1.0, relative.order xy, relative.pairing interleaved, pre_norm",
}


def test_both_doors_find_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(FIXTURE), "--json", "--pooling", "mean", "--image-size", "32"]) == 0
    printed = json.loads(capsys.readouterr().out)
    inspection = inspect(str(FIXTURE), pooling="mean", image_size=32)
    assert json.loads(json.dumps(inspection.facts)) == printed
    assert inspection.config.pooling == "mean"
    assert inspection.usable
    assert capsys.readouterr() == ("", "")


def test_it_shows_itself_as_a_table_with_findings() -> None:
    text = inspect(FIXTURE)._repr_markdown_()
    assert f"| checkpoint | {FIXTURE} |\n|---|---|\n| format | google |" in text
    assert "| encoder | 3 blocks, width 32, 4 heads, MLP 64 |" in text
    assert "- **warning**: the 7 classes have no names" in text


def test_options_beyond_the_papers_are_listed_by_their_names(tmp_path: Path) -> None:
    rows = {name: dict(inspect(write_family(tmp_path / f"{name}.safetensors", name)).rows) for name in OPTIONS}
    assert {name: row["options"] for name, row in rows.items()} == OPTIONS
    assert "options" not in dict(inspect(FIXTURE).rows)


TOKENS = {
    "dinov3": "21: [cls] + 4 registers + patches; rotary positions",
    "beit": "17: [cls] + patches; relative position bias",
    "pe": "17: [cls] + patches; learned positions, rotary positions",
    "deit-distilled": "18: [cls] + distillation token + patches; learned positions",
}


def test_tokens_and_how_the_model_knows_where_they_are(tmp_path: Path) -> None:
    rows = {name: dict(inspect(write_family(tmp_path / f"{name}.safetensors", name)).rows) for name in TOKENS}
    assert {name: row["tokens"] for name, row in rows.items()} == TOKENS


def test_an_unknown_setting() -> None:
    with pytest.raises(ConfigError, match="inspect has no setting 'source_fromat'; did you mean source_format"):
        inspect(FIXTURE, source_fromat="google")


def test_statistics_of_batch_norms_are_no_parameters(tmp_path: Path) -> None:
    model = create("hybrid-32")
    parts = {"tensors": model.state_dict(), "preprocess": preset("google", model.config.image_size)}
    save_checkpoint(Checkpoint(config=model.config, **parts), tmp_path / "model.safetensors")
    counted = sum(parameter.numel() for parameter in model.parameters())
    found = inspect(tmp_path / "model.safetensors")
    assert (found.parameters, found.dtypes) == (counted, ("float32",))
