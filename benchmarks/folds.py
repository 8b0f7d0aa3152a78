"""How long five folds take, beside one run: on frozen features, which are computed once for all of them.

    python -m benchmarks.folds DATA --weights WEIGHTS [--folds 5]

One run and the folds are each a process of its own, one after the other, without the report.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.timing import print_machine


def main() -> None:
    """Time both and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a folder of class folders, a table, or a name such as digits")
    parser.add_argument("--weights", required=True, help="what the features are computed with")
    parser.add_argument("--folds", type=int, default=5)
    arguments = parser.parse_args()
    print_machine()
    plain = ["--weights", arguments.weights, "--train", "head", "--no-report", "--no-check"]
    seconds = {
        name: _time([arguments.data, *plain, *more])
        for name, more in (("one run", []), (f"{arguments.folds} folds", ["--folds", str(arguments.folds)]))
    }
    for name, taken in seconds.items():
        print(f"{name:10} {taken:7.1f} s")
    one, folds = seconds.values()
    print(f"ratio      {folds / one:7.2f}")


def _time(arguments: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        command = [sys.executable, "-m", "vitrail", "train", *arguments, "--out", str(Path(folder) / "run")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
