"""A release: distributions that install and run anywhere, a dated changelog, valid workflows."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

import vitrail
from fuzzing import in_fuzz_only

ROOT = Path(__file__).parents[1]
SHIP = ROOT / "docs" / "images" / "ship.png"
# `vitrail demo` as installed, with one epoch instead of twenty-four: what learning reaches is shown elsewhere.
SHORT_DEMO = """
import sys
from vitrail.cli.main import main
from vitrail.training import recipes
from vitrail.training.changes import apply_changes
short = apply_changes(recipes.digits(), {"epochs": 1})
recipes.RECIPES["digits"] = lambda: short
sys.exit(main(["demo"]))
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` builds, in a folder of its own."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a venv that has the wheel, and of this environment only what the wheel depends on."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is searched, but the .pth files in it, such as that of an editable install, are not read.
    (packages / "dependencies.pth").write_text(os.path.join(*Path(pytest.__file__).parts[:-2]))  # noqa: PTH118
    (wheel,) = dist.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--ignore-installed", str(wheel)], check=True)
    return folder / "bin"


def run(folder: Path, *command: str) -> str:
    """What a command prints, run in a folder that is not the clone."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "COLUMNS")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_distributions_are_whole(dist: Path) -> None:
    wheel, source = next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))
    assert source.name == f"vitrail-{vitrail.__version__}.tar.gz"
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert files == {name.removeprefix("src/") for name in tracked.splitlines()}


@in_fuzz_only
def test_the_wheel_works_outside_the_clone(installed: Path, tmp_path: Path) -> None:
    home = run(tmp_path, str(installed / "python"), "-c", "import vitrail; print(vitrail.__file__)")
    assert Path(home.strip()).is_relative_to(installed.parent)
    assert "ship" in run(tmp_path, str(installed / "vitrail"), "predict", str(SHIP))
    assert "test  accuracy" in run(tmp_path, str(installed / "python"), "-c", SHORT_DEMO)
    assert (tmp_path / "runs" / "demo-1" / "report.html").is_file()


def test_the_version_is_one_fact() -> None:
    dated = re.search(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert dated is not None
    assert dated.groups() == (vitrail.__version__, str(citation["date-released"]))
    assert citation["version"] == vitrail.__version__


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_what_a_code_host_reads_is_valid(schema: str, pattern: str) -> None:
    files = [str(path) for path in ROOT.glob(pattern)]
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
