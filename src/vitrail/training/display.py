"""How a training run is shown: a live bar on a terminal; in a pipe a line per epoch and per half minute."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from vitrail.progress import Pulse
from vitrail.training.listener import Listener, Plan
from vitrail.wording import name_metric, show_metric, word_arguments

if TYPE_CHECKING:
    from vitrail.data.check.findings import DataFinding
    from vitrail.training.curves import EpochRow

STYLES = {"error": "bold red", "warning": "yellow"}


class Display(Listener):
    """Prints to `console`, with arguments as `word` puts them for the reader; nothing at all if it is silent."""

    def __init__(self, console: Console, *, word: Callable[[str], str] = word_arguments, silent: bool = False) -> None:
        self.console = console
        self.word = word
        self.silent = silent
        self._bar: Progress | None = None
        self._epochs = self._steps = 0
        self._drawn = 0.0
        self._state = ""  # what a pulse prints
        self._pulse: Pulse | None = None
        self._beating = ExitStack()

    def checked(self, findings: "Sequence[tuple[DataFinding, int]]", data: str) -> None:
        for item, count in findings:
            severity = f"[{STYLES[item.severity]}]{item.severity} in the data[/]"
            detail = f" ({escape(item.detail)})" if count == 1 and item.detail else ""
            self._print(f"{severity}: {item.what}: {count:,}, for example {escape(item.key)}{detail}")
        if findings:
            self._print(f"[dim]training continues with these data; details: vitrail data check {escape(data)}[/]")

    def decided(self, plan: Plan) -> None:
        for line in plan.describe():
            self._print(escape(line))

    def opened(self, folder: Path, *, resume: bool) -> None:
        self._print(f"{'continuing' if resume else 'writing to'} [bold]{escape(str(folder))}[/]")

    def _print(self, text: str) -> None:
        if not self.silent:
            self.console.print(self.word(text), soft_wrap=True)

    def prepared(self, what: str, done: int, total: int) -> None:
        if self.silent:
            return
        if self.console.is_terminal:
            bar = self._bar or self._start_bar(what, total)
            bar.update(bar.task_ids[0], description=what, completed=done, total=total)
        else:
            self._beat(f"{what}: {done:,} of {total:,}")
        if done == total:
            self.ended()

    def began(self, total_steps: int, done_steps: int, epochs: int) -> None:
        self._epochs, self._steps = epochs, total_steps
        if self.silent:
            return
        if self.console.is_terminal:
            columns = TextColumn("{task.fields[speed]}"), TimeRemainingColumn()
            self._start_bar("training", total_steps, *columns, completed=done_steps, speed="")
        else:
            self._beat(f"training: step {done_steps:,} of {total_steps:,}")

    def _start_bar(self, what: str, total: int, *columns: ProgressColumn, **fields: Any) -> Progress:
        usual = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        self._bar = Progress(*usual, *columns, console=self.console, transient=True)
        self._bar.add_task(what, total=total, **fields)
        self._bar.start()
        return self._bar

    def planned(self, total_steps: int, epochs: int) -> None:
        self._epochs = epochs
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], total=total_steps)

    def stepped(self, step: int, loss: float, images_per_second: float) -> None:
        if self._pulse is not None:
            self._state = (
                f"training: step {step:,} of {self._steps:,}, loss {loss:.3f}, {images_per_second:,.0f} images/s"
            )
        if self._bar is None or time.monotonic() - self._drawn < 0.1:
            return
        self._drawn = time.monotonic()
        speed = f"{images_per_second:,.0f} images/s"
        self._bar.update(self._bar.task_ids[0], completed=step, description=f"loss {loss:.3f}", speed=speed)

    def finished_epoch(self, row: "EpochRow", is_best: bool) -> None:
        if self.silent:
            return
        parts = [f"epoch {row.epoch}/{self._epochs}", f"loss {row.train_loss:.4f}"]
        if row.val_loss is not None:
            parts.append(f"val loss {row.val_loss:.4f}")
            shown = [name for name in row.shown if name in row.metrics] or list(row.metrics)[:1]
            parts += [f"val {name_metric(name)} {show_metric(name, row.metrics[name])}" for name in shown]
        parts += [f"{row.images_per_second:,.0f} images/s", f"{row.seconds:.0f} s"]
        self.console.print("  ".join(parts) + ("  [green]best[/]" if is_best else ""))
        self._heard()

    def said(self, message: str) -> None:
        self._print(f"[yellow]note:[/] {escape(message)}")
        self._heard()

    def ended(self) -> None:
        if self._bar is not None:
            with suppress(OSError):  # after SIGHUP, there is no terminal anymore
                self._bar.stop()
            self._bar = None
        self._beating.close()
        self._pulse = None

    def _beat(self, state: str) -> None:
        self._state = state
        if self._pulse is None:
            self._pulse = Pulse(self.console, lambda: self._state)
            self._beating.enter_context(self._pulse.beating())

    def _heard(self) -> None:
        if self._pulse is not None:
            self._pulse.heard()
