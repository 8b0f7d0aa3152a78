"""What an issue report needs: true, complete, and nothing that identifies its user."""

import shutil
from pathlib import Path

import pytest
import torch

from vitrail.cli.main import main
from vitrail.verbs.doctor import doctor


def test_it_reports_the_machine_and_the_packages() -> None:
    report = doctor()
    assert report.problems == ()
    assert f"| torch | {torch.__version__}" in report.markdown
    facts = {name: value for section in report.sections for name, value in section.facts}
    assert "numpy" in facts["packages"]
    assert "MISSING" not in facts["packages"]
    assert {"extra export", "extra serve", "extra tables"} <= facts.keys()
    assert "extra dev" not in facts


def test_a_good_checkpoint_and_data_set() -> None:
    report = doctor("cifar10", "digits")
    assert report.problems == ()
    assert "gives 128 finite features" in report.markdown
    assert "train 1,259, val 269, test 269" in report.markdown


def test_what_is_broken_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    assert main(["doctor", str(tmp_path / "bad.safetensors"), "--data", str(tmp_path / "nowhere")]) == 1
    printed = capsys.readouterr().out
    assert "### Machine" in printed  # the rest is still there
    assert printed.count("**problem**") == 2
    assert "bad.safetensors" in printed


def test_the_home_folder_and_bars_do_not_reach_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / "somebody"
    home.mkdir(parents=True)
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: home))
    from vitrail.weights.resolve import bundled_path

    shutil.copy(bundled_path("cifar10"), home / "a|b.safetensors")
    text = doctor(home / "a|b.safetensors").markdown
    assert "somebody" not in text
    assert "~/a\\|b.safetensors" in text
