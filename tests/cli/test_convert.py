import json
from pathlib import Path

import pytest

from vitrail.cli.main import main

FIXTURE = str(Path(__file__).parents[1] / "weights" / "fixtures" / "google_token.npz")


def test_convert_proves_and_says_how_to_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "vit"
    assert main(["convert", FIXTURE, str(target), "--to", "hf"]) == 0
    printed = capsys.readouterr().out
    assert "(google) →" in printed
    assert "same top class for 100% of 4 pictures" in printed
    assert "transformers.ViTForImageClassification.from_pretrained" in printed
    assert (target / "config.json").is_file()


def test_an_attention_scale_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "a.safetensors")
    assert main(["convert", FIXTURE, target, "--attention-scale", "0.3"]) == 0
    capsys.readouterr()
    assert main(["inspect", target, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["block"]["attention_scale"] == 0.3


def test_a_file_of_timm_does_not_say_its_gelu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", FIXTURE, str(tmp_path / "a.safetensors"), "--to", "timm"]) == 0
    printed = capsys.readouterr().out
    assert "its readers must know: " in printed
    assert "activation gelu_tanh" in printed
    assert "act_layer='gelu_tanh'" in printed


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["convert", FIXTURE, str(tmp_path / "a.safetensors"), "--json", "--resize", "48", "--num-classes", "3"])
        == 0
    )
    facts = json.loads(capsys.readouterr().out)
    assert facts["agreement"]["what"] == "features"  # the new head is all zeros
    assert facts["agreement"]["scale"] > 0.1
    assert main(["inspect", str(tmp_path / "a.safetensors"), "--json"]) == 0
    inspected = json.loads(capsys.readouterr().out)
    assert inspected["config"]["image_size"] == [48, 48]
    assert inspected["config"]["num_classes"] == 3
    assert inspected["origin"]["format"] == "google"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "timm"], "a timm checkpoint must have .safetensors"),
        (["--to", "torchvision"], "its GELU is gelu ("),
        (["--to", "jax"], "invalid value"),
        (["--from", "timm"], "has no tensor patch_embed.proj.weight"),
        (["--resize", "33"], "image_size must be a multiple of 8"),
        (["--pictures", "nowhere.jpg"], "nowhere.jpg"),
    ],
)
def test_mistakes_exit_2_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    suffix = ".npz" if "timm" in arguments and "--to" in arguments else ".safetensors"
    suffix = ".pth" if "torchvision" in arguments else suffix
    assert main(["convert", FIXTURE, str(tmp_path / f"a{suffix}"), *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []
