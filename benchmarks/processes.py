"""Contestants in processes of their own, so that nobody's threads are in another's way, which take turns all the same.

A child answers each line of its standard input with one line; it sleeps in between.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def serve_turns(turn: Callable[[str], str]) -> None:
    """The child's side: what a turn answers to each line that arrives."""
    for line in sys.stdin:
        print(turn(line.strip()), flush=True)


class Child:
    """The parent's side of a contestant: `python -m MODULE …`."""

    def __init__(
        self, module: str, *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        command = [sys.executable, "-m", module, *arguments]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, **pipes, text=True, cwd=cwd, env=env)

    def ask(self, question: str) -> str:
        """Let it take a turn and wait for its answer."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer.endswith("\n"):
            raise RuntimeError(f"a contestant ended with exit code {self._process.wait()}")
        return answer.strip()

    def end(self) -> None:
        self._process.communicate()
