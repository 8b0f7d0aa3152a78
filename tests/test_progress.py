"""Long work in a pipe: a line before half a minute has passed in silence."""

import io
import re
import time

import pytest

from processes import wait_for
from vitrail import progress as pulse
from vitrail.progress import EVERY, PlainConsole, Pulse, progress_bar, working
from vitrail.training.curves import EpochRow
from vitrail.training.display import Display

ROW = EpochRow(
    epoch=1,
    step=9,
    lr=0.1,
    train_loss=1.0,
    val_loss=1.0,
    metrics={"accuracy": 0.5},
    images_per_second=100.0,
    seconds=9.0,
)


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pulse, "spoken_at", None)


def pulse_into(file: io.StringIO, clock: FakeClock) -> Pulse:
    return Pulse(PlainConsole(file=file), lambda: "evaluating: 3 of 9", clock)


def test_silence_is_never_longer_than_30_seconds() -> None:
    assert EVERY + pulse.LOOK < 30
    file, clock = io.StringIO(), FakeClock()
    beat = pulse_into(file, clock)
    spoken: list[float] = []
    for second in range(1, 301):
        clock.now = 1000.0 + second
        before = len(file.getvalue())
        beat.speak()
        spoken += [second] if len(file.getvalue()) > before else []
    assert spoken == [25 * number for number in range(1, 13)]
    assert file.getvalue().splitlines()[0] == "evaluating: 3 of 9 (25 s)"


def test_short_steps_one_after_the_other_are_one_silence() -> None:
    file, clock = io.StringIO(), FakeClock()
    pulse_into(file, clock).speak()
    clock.now += EVERY - 1
    second = pulse_into(file, clock)
    second.speak()
    assert not file.getvalue()
    clock.now += 1
    second.speak()
    assert file.getvalue() == "evaluating: 3 of 9 (1 s)\n"


def test_a_line_of_another_kind_counts() -> None:
    file, clock = io.StringIO(), FakeClock()
    beat = pulse_into(file, clock)
    clock.now += EVERY
    beat.heard()
    beat.speak()
    assert not file.getvalue()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "EVERY", 0.05)
    monkeypatch.setattr(pulse, "LOOK", 0.01)


@pytest.mark.usefixtures("hasty")
def test_bars_and_work_speak_on_the_error_stream_while_nothing_advances(capsys: pytest.CaptureFixture[str]) -> None:
    heard = ""

    def has_said(pattern: str) -> bool:
        nonlocal heard
        captured = capsys.readouterr()
        assert captured.out == ""
        heard += captured.err
        return re.search(pattern, heard) is not None

    with progress_bar("silent", 3, speaks=False), working("silent", speaks=False):
        with progress_bar("pictures", 2000) as advance:
            advance(1500)
            wait_for(lambda: has_said(r"pictures: 1,500 of 2,000 \(\d+ s\)\n"))
        with working("writing the report"):
            wait_for(lambda: has_said(r"writing the report … \(\d+ s\)\n"))
    assert not has_said("silent")


@pytest.mark.usefixtures("hasty")
def test_training_speaks_within_an_epoch() -> None:
    file = io.StringIO()
    display = Display(PlainConsole(file=file, width=200))
    display.prepared("train features", 3, 4)
    wait_for(lambda: re.search(r"train features: 3 of 4 \(\d+ s\)\n", file.getvalue()))
    display.prepared("train features", 4, 4)
    display.began(100, 0, 2)
    display.stepped(7, 1.25, 321.0)
    wait_for(lambda: re.search(r"training: step 7 of 100, loss 1.250, 321 images/s \(\d+ s\)\n", file.getvalue()))
    display.finished_epoch(ROW, is_best=False)
    display.ended()
    lines = file.getvalue()
    time.sleep(0.1)
    assert file.getvalue() == lines
