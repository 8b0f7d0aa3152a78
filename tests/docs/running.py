"""Run a page from top to bottom: its Python blocks in one namespace, its shell blocks by the command itself."""

import io
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tests.docs.pages import Block, blocks
from tests.training.victims import run_command

from processes import run_ranks
from vitrail.cli.main import main

# Page → what takes hours or other pictures, or does again what the shell did, and what is run in its place.
SHORTENED: dict[str, dict[str, str]] = {
    # without the network, photographs would start from scratch, in a model that no other format can hold
    "README.md": {'train("flowers")': 'train("flowers", epochs=1, weights="hf://google/vit-base-patch16-224")'},
    "docs/data.md": {"batch_size=256": "batch_size=4", "range(10)": "range(2)"},
    "docs/evaluate.md": {"model.safetensors digits": "model.safetensors my-pictures"},
    "docs/fast.md": {
        "benchmark runs/train-1": "benchmark runs/train-1 --runtimes torch",
        " --with model-int8": " --with model.onnx",
        "benchmark model.onnx --with model.onnx": "benchmark model.onnx",
        " --precision int8 --calibrate photos": "",  # quantising has its own tests, and wants hundreds of pictures
        'export("runs/train-1", "model.onnx")': 'export("runs/train-1", "model.onnx", overwrite=True)',
        'exports=["model.onnx"])': 'exports=["model.onnx"], runtimes=["torch"], seconds=0.05, batch=[1])',
    },
    # measuring which runtime is fastest has its own tests
    "docs/guides/a-million-pictures.md": {
        "--job labels": "--job labels --runtime torch",
        "--job shared": "--job shared --runtime torch",
        "imagenette --job embeddings": "imagenette --job embeddings --runtime torch",
        '"labels", resume=True': '"labels", resume=True, runtime="torch"',
    },
    "docs/guides/few-labels-many-pictures.md": {
        "pretrain all --minutes 60": "pretrain pictures --model cifar-tiny --epochs 1",
        "train labelled --": "train flowers --epochs 1 --recipe finetune --",
        "pretrain rows.csv": "pretrain rows.csv --model cifar-tiny --epochs 1 --batch-size 2 --val-rate 0",
        "train labelled.csv": "train flowers --epochs 1 --recipe finetune",  # of two pictures, nothing can be learned
        "pretrain cifar10 --minutes 60": "pretrain cifar10 --model cifar-tiny --epochs 1",
        "--epochs 100": "--epochs 1 --no-probe",
        "--model cifar-small": "--model cifar-tiny --epochs 1",
        "pretrain all --weights": "pretrain pictures --weights",
        "--epochs 50": "--epochs 1",
        "labelled --probe": "flowers --probe",
    },
    "docs/predict.md": {"--data digits": "--data my-pictures"},  # 30 pictures on the map instead of 1,797
    "docs/tutorial/4-training.md": {'recipe="cifar10-tiny")': 'recipe="cifar10-tiny", epochs=1)'},
    "docs/tutorial/7-to-a-service.md": {"benchmark model.safetensors": "benchmark model.safetensors --runtimes torch"},
    "docs/train.md": {
        "PICTURES --train lora": "imagenette --image-size 56 --train lora",
        "minutes=30": "epochs=1",
        'recipe="scratch"': 'recipe="scratch", image_size=64',
    },
    "docs/weights.md": {'"deit.safetensors", heads=6)': '"deit.safetensors", heads=6, overwrite=True)'},
}
# Pages that take long: `make fuzz` runs them.
LONG = (
    "docs/evaluate.md",
    "docs/explain.md",
    "docs/fast.md",
    "docs/serve.md",
    "docs/train.md",
    "docs/guides/a-small-model-from-a-large-one.md",
    "docs/guides/fine-tune.md",
    "docs/guides/few-labels-many-pictures.md",
    "docs/guides/many-machines.md",
    "docs/guides/scikit-learn.md",
    "docs/tutorial/4-training.md",
    "docs/tutorial/5-heads-and-resolution.md",
    "docs/tutorial/6-choices.md",
    "docs/tutorial/7-to-a-service.md",
    "docs/tutorial/mistakes.md",
)
# Word of a command → what makes it a matter of seconds; not in the guides, whose outputs are compared.
QUICK = {
    "train": ("--epochs", "1", "--no-check"),
    "pretrain": ("--epochs", "1", "--no-check"),
    "benchmark": ("--seconds", "0.05", "--batch", "1"),
    "--robustness": ("--robustness-pictures", "2"),
}
# What only programs of their own contain: those with arguments, services and their clients, which have their own tests.
OWN_PROGRAMS = ("sys.argv", "vitrail.serve(", "127.0.0.1:8000")
# How a line of the shell may begin that is not run, because it is tried elsewhere.
ELSEWHERE = {
    "vitrail embed runs/train-1 s3://": "tests/prediction/test_job.py",
    "vitrail predict runs/train-1 s3://": "tests/prediction/test_job.py",
    "vitrail serve": "tests/serving",
    "VITRAIL_TOKEN=… vitrail serve": "tests/serving",
    "curl": "tests/serving; pictures on standard input: tests/cli/test_predict.py",
    "find": "tests/cli/test_predict.py",
    "torchrun --nproc-per-node 8": "tests/training/test_distributed.py",
    "torchrun --nnodes": "tests/training/test_distributed.py",
    "docker": "tests/test_deploy.py",
    "make": ".ci/run",
    "pip": ".ci/run",
    "vitrail demo": "tests/cli/test_demo.py",
}
PEERS = ("--verify-with-peer", "--compare")  # what runs other libraries


@dataclass(frozen=True)
class Ran:
    """A block that was run, and what it printed."""

    block: Block
    output: str  # its standard output
    everything: str  # with the error stream
    shown: Block | None  # the `text` block in which the page shows that


def run_page(page: Path, namespace: dict[str, Any]) -> Iterator[Ran]:
    """Each block that runs."""
    all_blocks = blocks(page)
    for block, following in zip(all_blocks, [*all_blocks[1:], None], strict=True):
        shown = following if following is not None and following.language == "text" else None
        if "not run" in block.marks:
            continue
        if block.language == "python" and not any(sign in block.text for sign in OWN_PROGRAMS):
            printed = _run_python(page, block, namespace)
            yield Ran(block, printed, printed, shown)
        elif block.language == "sh":
            yield _run_commands(page, block, shown)


def _run_python(page: Path, block: Block, namespace: dict[str, Any]) -> str:
    printed = io.StringIO()
    code = compile("\n" * (block.line - 1) + _shorten(page, block), str(page), "exec")  # errors name the page's line
    with redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


def _run_commands(page: Path, block: Block, shown: Block | None) -> Ran:
    """Every line of a shell block; one that the page shows as an error must end as one."""
    everything = io.StringIO()
    output = _Both(everything)
    expected = 2 if shown is not None and shown.text.startswith("error: ") else 0
    for line in _shorten(page, block).replace("\\\n", " ").splitlines():
        if any(line.startswith(beginning) for beginning in ELSEWHERE):
            continue
        words = shlex.split(line, comments=True)
        with redirect_stdout(output), redirect_stderr(everything):
            code = _run(page, words)
        place = f"{page}:{block.line}: {line}"
        assert code == expected, f"{place} ended with exit code {code}\n{everything.getvalue()}"
    return Ran(block, output.getvalue(), everything.getvalue(), shown)


def _run(page: Path, words: list[str]) -> int:
    if words[0] == "torchrun":  # tests/training/test_distributed.py runs the agent of torchrun
        _, _, count, _, _, *words = words
        codes = run_ranks(run_command, Path.cwd(), words, "printed", count=int(count))
        print(Path("printed").read_text(encoding="utf-8"), end="")
        return max(codes)
    assert words[0] == "vitrail", f"{page}: only commands of vitrail can be run; got {words[0]}"
    if any(flag in words for flag in PEERS):
        import benchmarks.peers  # noqa: F401
    words = words[1:]
    if not page.is_relative_to("docs/guides") and not {"--dry-run", "--resume"} & set(words):
        extra = [flag for word, flags in QUICK.items() if word in words for flag in flags]
        words = [word for word in words if word not in ("--minutes", "30")] + extra
    return main(words)


def _shorten(page: Path, block: Block) -> str:
    text = block.text
    for old, new in SHORTENED.get(page.as_posix(), {}).items():
        text = text.replace(old, new)
    return text


class _Both(io.StringIO):
    """Keeps what is written to it, and passes it on to another stream."""

    def __init__(self, other: TextIO) -> None:
        super().__init__()
        self.other = other

    def write(self, text: str, /) -> int:
        self.other.write(text)
        return super().write(text)
