import os
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from vitrail import __version__
from vitrail.cli.main import entry, main
from vitrail.verbs import VERBS


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(verb in printed for verb in VERBS)
    assert "--debug" in printed


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert f"Usage: vitrail {verb}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["sumary"], f"vitrail has no verb 'sumary'; did you mean summary? The verbs: {', '.join(VERBS)}."),
        (["xyz"], f"vitrail has no verb 'xyz'; the verbs: {', '.join(VERBS)}."),
        (["--verson"], "vitrail has no option '--verson'; did you mean --version? The verbs: "),
        (
            ["data", "chek", "x"],
            "vitrail data has no verb 'chek'; did you mean check? The verbs: check, audit, show, shard.",
        ),
        (
            ["summary", "--num-clases", "3"],
            "vitrail summary has no option --num-clases; did you mean --num-classes?",
        ),
        (["summary", "--num-classes", "three"], "invalid value for --num-classes: unable to convert"),
        (["summary", "a", "b", "c"], "vitrail summary takes no further arguments; got b c; see vitrail summary --help"),
        (["convert", "a.npz"], "vitrail convert needs TARGET; see vitrail convert --help."),
        (["summary", "--num-classes"], "--num-classes needs a value; see vitrail summary --help."),
    ],
)
def test_wrong_arguments_are_told_like_every_error(
    typed: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {message}")
    assert captured.err.count("\n") == 1


def test_our_errors_are_one_message_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "vit-b61"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: unknown model 'vit-b61'; did you mean")
    assert "Traceback" not in captured.err


def test_names_cannot_send_codes_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "evil\x1b[31m[bold].npz"]) == 2
    printed = capsys.readouterr().err
    assert "\x1b" not in printed
    assert r"evil\x1b[31m[bold].npz" in printed


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "vit-b61", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["/proc/nothing/a.safetensors", "a" * 300 + ".safetensors"])
def test_what_the_system_refuses_is_one_message(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture = Path(__file__).parents[1] / "weights" / "fixtures" / "google_token.npz"
    place = str(tmp_path / target) if target[0] != "/" else target
    assert main(["convert", str(fixture), place, "--image-size", "32"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_sigterm_cleans_up_and_exits_143(tmp_path: Path) -> None:
    code = (
        "import os, signal, vitrail.cli.main as m\n"
        "def verb(argv=None):\n"
        "    try: signal.raise_signal(signal.SIGTERM); signal.pause()\n"
        f"    finally: open({str(tmp_path / 'clean')!r}, 'w').close()\n"
        "m.main = verb; m.entry()"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 143
    assert (tmp_path / "clean").exists()


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"set -o pipefail; {sys.executable} -m vitrail train --help | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in result.stderr
    assert "BrokenPipe" not in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_verbs_and_their_flags(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--show-completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in VERBS)
    assert "label-smoothing" in script


@pytest.mark.parametrize(
    ("encoding", "printed"),
    [
        ("ascii", b"3\\xd732 caf\xe9 \\u2026"),
        ("latin-1", b"3\xd732 caf\xe9 \\u2026"),
        ("cp1252", b"3\xd732 caf\xe9 \x85"),
        ("utf-8", b"3\xc3\x9732 caf\xe9 \xe2\x80\xa6"),
    ],
)
def test_every_stream_takes_every_text(encoding: str, printed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    written = BytesIO()
    monkeypatch.setattr("sys.stdout", TextIOWrapper(written, encoding=encoding, write_through=True))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("vitrail.cli.main.main", lambda: print("3×32", os.fsdecode(b"caf\xe9"), "…", end=""))
    with pytest.raises(SystemExit):
        entry()
    assert written.getvalue() == printed


def test_a_closed_output_is_told_where_it_would_lose_the_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    for typed, code in ((["predict", "cat.jpg"], 2), (["models"], 0)):
        monkeypatch.setattr("sys.stdout", None)
        monkeypatch.setattr("sys.argv", ["vitrail", *typed])
        with pytest.raises(SystemExit) as ended:
            entry()
        assert ended.value.code == code
        sys.stdout.close()
    assert capsys.readouterr().err.startswith("error: standard output is closed, so the predictions would be lost")
