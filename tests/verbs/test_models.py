"""`vitrail.models` and `vitrail models` are the same thing through two doors."""

import json

import pytest

import vitrail
from vitrail.cli.main import main
from vitrail.errors import ConfigError
from vitrail.verbs.models import Models, PretrainedModels, models
from vitrail.weights import pretrained


def test_both_doors_give_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    table = models()
    assert isinstance(table, Models)
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
    table = models()
    assert isinstance(table, Models)
    lines = table._repr_markdown_().splitlines()
    assert lines[0].startswith("| model | pixels | patch |")
    assert "| vit-b16 | 224 | 16 | 12 | 768 | 3072 | 12 | 86.6 M | 17.56 |" in lines


def test_pretrained_weights_through_both_doors(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["models", "--pretrained", "--commercial", "--ungated", "--max-mb", "100"]
    assert main([*flags, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    listed = models(pretrained=True, commercial=True, ungated=True, max_mb=100)
    assert isinstance(listed, PretrainedModels)
    assert printed == listed.to_dict()
    assert printed["as_of"] == pretrained.AS_OF
    facts = {row["weights"]: row for row in printed["weights"]}
    assert facts["hf://facebook/dinov2-small"] == {
        "family": "DINOv2",
        "size": "S/14",
        "weights": "hf://facebook/dinov2-small",
        "licence": "Apache-2.0",
        "commercial": True,
        "gated": False,
        "pixels": 518,
        "parameters": 22056192,
        "megabytes": 88,
        "accuracy": 81.1,
        "measure": "linear probe",
        "reference": "github.com/facebookresearch/dinov2, README.md",
    }
    assert main(flags) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[1 : len(listed) + 1]] == [row.source for row in listed]
    assert f"{len(listed)} rows, as of {pretrained.AS_OF}." in lines[len(listed) + 2]
    assert lines[-1] == "next: vitrail train PICTURES --weights hf://facebook/dinov2-small"
    assert listed._repr_markdown_().splitlines()[0].startswith("| family | size | weights | licence |")


def test_filters_keep_what_they_say() -> None:
    everything = models(pretrained=True)
    assert isinstance(everything, PretrainedModels)
    for flags, holds in (
        ({"commercial": True}, lambda row: row.licence in ("Apache-2.0", "MIT", "DINOv3")),
        ({"ungated": True}, lambda row: not row.gated),
        ({"max_mb": 90.0}, lambda row: row.megabytes <= 90),
    ):
        listed = models(pretrained=True, **flags)
        assert isinstance(listed, PretrainedModels)
        assert list(listed) == [row for row in everything if holds(row)]
        assert 0 < len(listed) < len(everything)
    assert list(models(pretrained=True, max_mb=1)) == []


@pytest.mark.parametrize("flag", ["commercial", "ungated", "max_mb", "measure"])
def test_what_is_about_weights_asks_for_them(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"{flag}= is about pretrained weights; pass pretrained= too"):
        models(**{flag: True})
    with pytest.raises(ConfigError, match="max_mb= must be above 0; got -1"):
        models(pretrained=True, max_mb=-1)


def test_speeds_are_measured_once_for_each_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "deit_tiny_patch16_224.fb_in1k", "vit_base_patch16_224.mae")
    names += ("vit_large_patch16_224.mae", "eva02_tiny_patch14_336.mim_in22k_ft_in1k")
    rows = [row for name in names if (row := pretrained.find(f"timm/{name}"))]
    measured: list[tuple[int, int]] = []

    def measure(config: pretrained.ViTConfig) -> float:
        measured.append((config.width, config.image_size[0]))
        return 100.0 if config.width == 192 else 1e-3

    monkeypatch.setattr(pretrained, "_measure_speed", measure)
    assert pretrained.measure_speeds(rows, 1e10) == [100.0, 100.0, 1e-3, None, 100.0]
    assert measured == [(192, 224), (192, 336), (768, 224)], "the cheapest first; nothing after one that was too slow"
    assert pretrained.measure_speeds(rows, 1e8)[2:] == [None, None, 100.0], "only what fits into memory"


def test_measured_speeds_are_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pretrained, "_measure_speed", lambda _: 12.34)
    assert main(["models", "--pretrained", "--measure", "--max-mb", "23"]) == 0
    head, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "images/s"
    assert first.split()[-1] == "12.3"


def test_a_small_architecture_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "ROUNDS", 2)
    row = pretrained.find("timm/vit_small_patch32_224.augreg_in21k_ft_in1k")
    assert row is not None
    (speed,) = pretrained.measure_speeds([row], 1e9)
    assert speed is not None
    assert 1 < speed < 1e5
