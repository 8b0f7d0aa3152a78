"""`vitrail push`: what goes to the hub is proven, comes back with everything, and says what it is; each way to fail is
one line that leaves nothing behind. The hub is one on loopback.
"""

import json
import re
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import constants

import vitrail
from hub_server import Hub, serve_hub
from shortcuts import skip_reports
from vitrail.cli.main import main
from vitrail.data.check.findings import CheckRecord, Trouble, write_record
from vitrail.errors import WeightsError
from vitrail.evaluation.output import facts, write_facts
from vitrail.model import ConvStem
from vitrail.training.result import Run
from vitrail.weights.native import read_native, save_checkpoint
from vitrail.weights.read import read_checkpoint

# What the hub's library itself does not do as its network library wishes.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning")
NAME = "anna/flowers"
ALL = {"README.md", "config.json", "model.safetensors", "vitrail.safetensors"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run that timm can hold, with what the report writes of its evaluation."""
    folder = tmp_path_factory.mktemp("runs") / "train-1"
    with pytest.MonkeyPatch.context() as patch:
        skip_reports(patch)
        run = vitrail.train("digits", model="cifar-tiny", epochs=1, out=folder, check=False)
    assert run.measurement is not None
    write_facts({**run.facts(), "evaluation": facts(run.measurement)}, folder / "metrics.json")
    return run


@pytest.fixture
def hub(inside: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Hub]:
    """A hub without models, which this process talks to."""
    (inside / "hub").mkdir()
    with serve_hub(NAME, inside / "hub") as hub:
        hub.exists = False
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(inside / "cache"))
        monkeypatch.setenv("HF_TOKEN", hub.token)
        yield hub


def card_of(folder: Path) -> tuple[dict[str, Any], str]:
    """The metadata of a card, and its text."""
    _, metadata, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(metadata), text


def test_a_dry_run_writes_what_would_be_pushed(
    run: Run, inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert main(["push", str(run.folder), NAME, "--dry-run", "--licence", "apache-2.0"]) == 0
    printed = capsys.readouterr().out
    folder = inside / "runs" / "push-1"
    assert {file.name for file in folder.iterdir()} == ALL
    assert "a dry run: nothing was pushed to anna/flowers" in printed
    assert f"next: read the card, then: vitrail push {run.folder} anna/flowers" in printed
    trained, ours, timm = read_native(run.best), read_checkpoint(folder), read_checkpoint(folder / "model.safetensors")
    assert (ours.file_format, timm.file_format) == ("vitrail", "timm")
    assert ours.classes == timm.classes == trained.classes
    assert ours.trust == trained.trust
    assert trained.trust is not None
    for name, tensor in trained.tensors.items():
        assert torch.equal(ours.tensors[name], tensor)
        assert torch.equal(timm.tensors[name], tensor)
    by_python = vitrail.push(run, NAME, dry_run=True, out="kept", licence="apache-2.0")
    assert by_python.folder == Path("kept")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        file.name: file.read_bytes() for file in Path("kept").iterdir()
    }


def test_the_card_is_filled_from_the_run(run: Run, inside: Path) -> None:
    vitrail.push(run, NAME, dry_run=True, out="kept", licence="cc-by-4.0")
    metadata, text = card_of(Path("kept"))
    measurement = run.measurement
    assert measurement is not None
    top1 = measurement.metrics.top1
    assert metadata["license"] == "cc-by-4.0"
    assert metadata["library_name"] == "timm"
    assert metadata["pipeline_tag"] == "image-classification"
    (result,) = metadata["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "accuracy", "value": round(top1.value, 4)}]
    assert result["dataset"] == {"name": "digits", "type": "digits", "split": "test"}
    for part in (
        "classifies pictures into 10 classes, trained on digits",
        f"{top1.value:.2%} (95 %: {top1.low:.2%} to {top1.high:.2%}) of 269 pictures (test)",
        'vitrail.load("hf://anna/flowers")',
        'timm.create_model("hf-hub:anna/flowers", pretrained=True)',
        "open pictures in colour only",  # the digits are grey
        "The pictures were not checked before training.",
        "| started from | random weights |",
        f"calibration error {measurement.metrics.calibration.error:.2%}",
        "Only vitrail applies it",
        f"269 pictures determine the accuracy only within {100 * (top1.high - top1.low):.1f} percentage points",
        "cc-by-4.0.",
        "- the target does not keep what the calibration found",
    ):
        assert part in text, part
    assert str(run.folder.parent) not in text


def test_the_card_names_the_weights_and_the_findings(run: Run, inside: Path) -> None:
    folder = inside / "other"
    (folder / "weights").mkdir(parents=True)
    checkpoint = replace(read_native(run.best), classes=("a|b", "*c*", "<d>", "`e`", *"ghijkl"), trust=None)
    save_checkpoint(checkpoint, folder / "weights" / "best.safetensors")
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    config["start"]["model"] = None
    config["start"]["weights"], config["data"] = "hf://facebook/dinov2-small", "/home/anna/secret/photos"
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "split.csv").write_text("key,split,class\na,train,x\nb,train,y\nc,test,x\n")
    trouble = Trouble("warning", "picture in two splits", 3, "anna/1.png", "")
    write_record(CheckRecord(data="photos", pictures=3, findings=(trouble,)), folder / "data_check.json")
    vitrail.push(folder, NAME, dry_run=True, out="kept")
    metadata, text = card_of(Path("kept"))
    assert metadata["base_model"] == "facebook/dinov2-small"
    assert {"license", "model-index"}.isdisjoint(metadata)
    assert "It started from hf://facebook/dinov2-small, which is under Apache-2.0; that licence also applies" in text
    assert "photos: train 2, test 1 pictures." in text
    assert "- picture in two splits (warning): 3" in text
    assert "It is not calibrated" in text
    assert "its accuracy is unknown" in text
    assert r"a\|b, \*c\*, \<d\>, \`e\`" in text
    assert "secret" not in text
    assert "1.png" not in text


def test_what_timm_cannot_hold_is_pushed_as_our_file_only(save_model: Callable[..., str], inside: Path) -> None:
    name = save_model(stem=ConvStem(widths=(8,), strides=(2,)), patch_size=4)
    pushed = vitrail.push(name, NAME, dry_run=True, out="kept", licence="MIT")
    assert pushed.to_dict()["why_not_timm"] == "timm cannot hold this model: it has no convolutional stem"
    assert {file.name for file in Path("kept").iterdir()} == {"README.md", "vitrail.safetensors"}
    metadata, text = card_of(Path("kept"))
    assert (metadata["library_name"], metadata["license"]) == ("vitrail", "mit")
    assert "in patches of 8×8" in text, "of pixels, not of what the stem gives"
    assert "timm and transformers cannot load it: timm cannot hold this model: it has no convolutional stem." in text
    assert "timm.create_model" not in text


def test_folders_of_this_machine_are_not_pushed(save_model: Callable[..., str], inside: Path) -> None:
    source = inside / save_model()
    checkpoint = read_native(source)
    for origin, shown in (
        ("/home/anna/secret/best.npz", "best.npz"),
        (r"C:\secret\best.npz", "best.npz"),
        ("hf://facebook/dinov2-small", "hf://facebook/dinov2-small"),
        ("trained on digits with digits", "trained on digits with digits"),
    ):
        save_checkpoint(replace(checkpoint, origin=replace(checkpoint.origin, source=origin)), source)
        folder = vitrail.push(source, NAME, dry_run=True).folder
        assert folder is not None
        assert read_checkpoint(folder).origin.source == shown


def test_a_pushed_model_comes_back_whole(run: Run, hub: Hub, inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pushed = vitrail.push(run, NAME, private=True)
    assert capsys.readouterr() == ("", "")
    assert pushed.url == f"{hub.address}/{NAME}"
    assert pushed.folder is None
    assert hub.private
    assert {file.name for file in hub.folder.iterdir()} == ALL
    assert hub.commits == [
        ["file README.md", "file config.json", "lfsFile model.safetensors", "lfsFile vitrail.safetensors"]
    ]
    hub.asked.clear()
    model, trained = vitrail.load(f"hf://{NAME}"), vitrail.load(run.folder)
    assert model.classes == trained.classes
    assert model.trust == trained.trust
    picture = torch.rand(1, 8, 8)
    assert model.predict(picture).scores == trained.predict(picture).scores
    assert not [asked for asked in hub.asked if "model.safetensors" in asked], "the same weights, twice"
    assert {path.name for path in inside.iterdir()} == {"hub", "cache"}


def test_what_is_there_is_replaced_only_if_asked(run: Run, hub: Hub, save_model: Callable[..., str]) -> None:
    vitrail.push(run, NAME)
    (hub.folder / "notes.txt").write_text("mine")
    other = save_model(stem=ConvStem(widths=(8,), strides=(2,)), patch_size=4)
    with pytest.raises(WeightsError, match=r"anna/flowers exists and holds README.md, config.json, .* overwrite= "):
        vitrail.push(other, NAME)
    with pytest.raises(WeightsError, match="is public; private= is for a new one"):
        vitrail.push(other, NAME, overwrite=True, private=True)
    assert len(hub.commits) == 1
    vitrail.push(other, NAME, overwrite=True)
    assert {file.name for file in hub.folder.iterdir()} == {"README.md", "vitrail.safetensors", "notes.txt"}, (
        "timm would load the old model"
    )


def test_a_repository_that_changes_meanwhile_is_left_alone(run: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.exists = True
    change = hub.change

    def change_before(lines: list[bytes]) -> str:
        hub.commit = "f" * 40  # somebody else's
        return change(lines)

    monkeypatch.setattr(hub, "change", change_before)
    with pytest.raises(WeightsError, match="has changed in the meantime; push again"):
        vitrail.push(run, NAME)
    assert hub.commits == []


FAILURES: list[tuple[str, dict[str, Any], str]] = [
    ("no token", {"token": ""}, r"log in with: hf auth login \(or set HF_TOKEN\)"),
    ("wrong token", {"token": "hf_secret"}, "the hub does not accept the token; log in again"),
    ("offline", {"offline": True}, "HF_HUB_OFFLINE is set"),
    ("no network", {"endpoint": "http://127.0.0.1:9"}, r"the hub cannot be reached \(Connection refused\)"),
    ("refused", {"refuses": {"create": 403}}, "may not write there; .* a token that may write for anna"),
    (
        "broken",
        {"refuses": {"commit": 400}},
        r"answers 400: the tests refuse this commit \(.* still empty",
    ),
    ("name", {"name": "flowers"}, "called OWNER/NAME, such as anna/flowers; got 'flowers'"),
    ("address", {"name": "hf://anna/flowers"}, "got 'hf://anna/flowers'; omit hf://"),
    ("strange name", {"name": "anna/flo--wers"}, r"got 'anna/flo--wers' \(.*--"),
    ("no run", {"source": "runs/train-9"}, "there is no checkpoint runs/train-9"),
    ("out", {"out": "."}, "--out must be a new folder; . exists"),
]


@pytest.mark.parametrize(("how", "message"), [case[1:] for case in FAILURES], ids=[case[0] for case in FAILURES])
def test_each_way_to_fail_is_one_line_and_leaves_nothing(
    run: Run,
    hub: Hub,
    inside: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: dict[str, Any],
    message: str,
) -> None:
    if "token" in how:
        monkeypatch.setenv("HF_TOKEN", how["token"])
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(inside / "none"))
    if "endpoint" in how:
        monkeypatch.setattr(constants, "ENDPOINT", how["endpoint"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", how.get("offline", False))
    hub.refuses = how.get("refuses", {})
    out = ["--out", how["out"]] if "out" in how else []
    before = sorted(inside.rglob("*"))
    assert main(["push", str(how.get("source", run.folder)), how.get("name", NAME), *out]) == 2
    printed = capsys.readouterr()
    (line,) = [line for line in printed.err.splitlines() if line.startswith("error:")]
    assert re.search(message, line), line
    assert "hf_secret" not in printed.err
    assert hub.token not in printed.err
    assert printed.out == ""
    assert hub.commits == []
    assert sorted(inside.rglob("*")) == before


def test_a_dry_run_that_fails_leaves_no_folder(save_model: Callable[..., str], inside: Path) -> None:
    name = save_model()
    checkpoint = read_native(Path(name))
    broken = {key: torch.full_like(tensor, float("nan")) for key, tensor in checkpoint.tensors.items()}
    save_checkpoint(replace(checkpoint, tensors=broken), name)
    with pytest.raises(WeightsError, match="NaN"):
        vitrail.push(name, NAME, dry_run=True)
    assert list((inside / "runs").iterdir()) == []


def test_the_token_is_never_quoted(run: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"Illegal header value b'Bearer {hub.token}'")

    monkeypatch.setattr(HfApi, "create_commit", fail)
    with pytest.raises(WeightsError, match="Illegal header value b'Bearer …'") as caught:
        vitrail.push(run, NAME)
    assert hub.token not in str(caught.value)


def test_json_says_what_was_proven(run: Run, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", str(run.folder), NAME, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["url"] == f"{hub.address}/{NAME}"
    assert facts["agreement"]["difference"] == facts["timm"]["difference"] == 0
    assert facts["why_not_timm"] is None
