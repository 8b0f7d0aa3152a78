"""The hub without a network: a cache laid out as huggingface_hub itself lays it out, read with HF_HUB_OFFLINE."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vitrail.errors import WeightsError
from vitrail.weights.addresses import MIRRORS
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.resolve import locate
from vitrail.weights.write import write_checkpoint
from weights_fixtures import FITTING

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def fill_cache(cache: Path, owner: str, name: str, files: Path) -> None:
    repository = cache / f"models--{owner}--{name}"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    files.rename(snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)


def run(cache: Path, code: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: huggingface_hub reads its environment when it is imported."""
    environment = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache), "PATH": "/usr/bin:/bin"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)


def test_a_model_in_the_cache_loads_offline(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(**FITTING["hf"]), tmp_path / "model", "hf")
    fill_cache(tmp_path / "cache", "someone", "vit", tmp_path / "model")
    sources = ["hf://someone/vit", f"hf://someone/vit@{COMMIT}", "hf://someone/vit@main"]
    code = (
        f"import vitrail\nfor source in {sources}:\n"
        "    loaded = vitrail.load(source); print(loaded.model.config.width, loaded.origin.format)"
    )
    result = run(tmp_path / "cache", code)
    assert result.stdout == 3 * "32 hf\n", result.stderr


def test_googles_names_find_their_mirror_with_googles_gelu(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    name = "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"
    config = {"width": 192, "depth": 12, "heads": 3, "mlp_width": 768, **FITTING["timm"]}
    write_checkpoint(make_checkpoint(**config), tmp_path / "model", "timm")
    fill_cache(tmp_path / "cache", "timm", MIRRORS[name], tmp_path / "model")
    code = (
        f"import vitrail; c = vitrail.load('google://{name}.npz').model.config; "
        "print(c.block.activation, c.positions.resample)"
    )
    result = run(tmp_path / "cache", code)
    assert result.stdout.strip() == "gelu_tanh google", result.stderr


def test_what_is_not_in_the_cache_says_so(tmp_path: Path) -> None:
    code = "import sys; from vitrail.cli.main import main; sys.exit(main(['inspect', 'hf://someone/nothing']))"
    result = run(tmp_path, code)
    assert result.returncode == 2
    assert "not in the cache and the hub cannot be reached" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf://nobody", "hf://owner/name"),
        ("hf://a/../../etc", "hf://owner/name"),
        ("s3://bucket/x", "a checkpoint is a path, hf://owner/name or google://NAME"),
        ("google://B_16-i21k", "could be any of these; write one in full: B_16-i21k-300ep-lr_0.001-aug_medium1"),
        ("google://ViT-B_16", "could be any of these; write one in full: imagenet21k/ViT-B_16, imagenet21k"),
        ("google://H_14", "not a release that the hub mirrors; try google:// followed by one of B_16, B_32, B_8"),
        ("google/vit-base-patch16-224", "write hf://google/vit-base-patch16-224"),
        ("nowhere.npz", "there is no checkpoint nowhere.npz"),
    ],
)
def test_bad_names(source: str, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        locate(source)


def test_the_mirrors_are_timms_own() -> None:
    from benchmarks.peers import timm

    for file, name in MIRRORS.items():
        config = timm.models.get_pretrained_cfg(name)
        assert config is not None, name
        assert "imagenet" in file.split("/")[0] or config.url.endswith(f"{file}.npz")
