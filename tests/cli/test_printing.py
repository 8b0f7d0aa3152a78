"""A reader that goes away, as `| head` does, is not an exit code that means broken pictures."""

import os
import sys
from collections.abc import Callable

import numpy as np
import pytest

from vitrail.cli import embed, eval_table
from vitrail.cli.printing import print_end


def print_embedding() -> None:
    embed._print(embed._Table(pictures=["a"], vectors=[np.zeros(3)]), "")


@pytest.mark.parametrize(
    "speak",
    [
        lambda: print_end([], "vitrail models"),
        lambda: eval_table.print_probes("a on b", {"split_from": None}),
        print_embedding,
    ],
    ids=["end", "eval", "embed"],
)
def test_a_reader_may_leave(speak: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        speak()
        monkeypatch.undo()
