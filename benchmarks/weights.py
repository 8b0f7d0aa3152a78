"""Loading and converting a ViT-B/16 (86 M parameters, float32), compared with timm and transformers.

    python -m benchmarks.weights

Loading: from a file on disk to a model in eval mode, best of interleaved rounds in one process. vitrail checks a
checksum of every tensor by default; the others check nothing. Converting: wall time and peak memory of
`vitrail convert`, which also runs both models, as a process of its own with PyTorch and its libraries included.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from torch import nn

import vitrail
from benchmarks.peers import timm, transformers
from benchmarks.timing import best_seconds, print_machine
from vitrail.data.preprocess import preset
from vitrail.model import BlockConfig, PositionConfig, ViT, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.write import write_checkpoint

TARGETS = {"vitrail": "out.safetensors", "hf": "out", "timm": "out.safetensors", "torchvision": "out.pth"}


def measure_loading(folder: Path, first_picture: bool) -> dict[str, float]:
    """Seconds to load, or to load and classify one picture (which reads every weight)."""
    picture = torch.randn(1, 3, 224, 224)

    def load_timm() -> nn.Module:
        path = str(folder / "timm.safetensors")
        return timm.create_model("vit_base_patch16_224", checkpoint_path=path).eval()

    def load_transformers() -> nn.Module:
        return transformers.ViTForImageClassification.from_pretrained(folder / "hf").eval()

    ours = folder / "vitrail.safetensors"
    loaders = {
        "vitrail": lambda: vitrail.load(ours).model,
        "vitrail, verify=False": lambda: vitrail.load(ours, verify=False).model,
        "timm": load_timm,
        "transformers": load_transformers,
    }

    def answer(load: Callable[[], nn.Module]) -> None:
        model = load()
        if first_picture:
            with torch.inference_mode():
                model(picture)

    return best_seconds({name: partial(answer, load) for name, load in loaders.items()}, rounds=8)


def measure(code: str) -> tuple[float, float]:
    """Seconds, and peak memory in MB, of a Python process of its own.

    The peak is the process's own VmHWM: `wait4` would include this process from before the exec.
    """
    report = "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
    began = time.perf_counter()
    result = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], check=True, capture_output=True, text=True)
    return time.perf_counter() - began, int(result.stdout.split()[-1]) / 1e3


def measure_converting(source: Path, target: Path, to: str) -> tuple[float, float]:
    command = ["convert", str(source), str(target), "--to", to, "--overwrite"]
    return measure(f"from vitrail.cli.main import main; assert main({command!r}) == 0")


def main() -> None:
    print_machine("timm", "transformers")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = ViTConfig(positions=PositionConfig(resample="timm"))
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        folder = Path(name)
        model = ViT(config)
        for parameter in model.parameters():
            parameter.normal_(std=0.02)
        checkpoint = Checkpoint(config=config, tensors=model.state_dict(), preprocess=preset("timm"))
        write_checkpoint(checkpoint, folder / "vitrail.safetensors")
        write_checkpoint(checkpoint, folder / "timm.safetensors", "timm")
        write_checkpoint(checkpoint, folder / "hf", "hf")
        google = ViTConfig(block=BlockConfig(activation="gelu_tanh"))
        save_file(model.state_dict(), folder / "plain.safetensors")
        write_checkpoint(
            Checkpoint(config=google, tensors=model.state_dict(), preprocess=preset("google")),
            folder / "google.npz",
            "google",
        )
        size = (folder / "plain.safetensors").stat().st_size / 1e6
        console = Console(width=100, highlight=False)
        loading, answering = (measure_loading(folder, first_picture) for first_picture in (False, True))
        table = Table("library", "load", "load + first picture", title="Loading, seconds", title_justify="left")
        for name, seconds in loading.items():
            table.add_row(name, f"{seconds:.3f}", f"{answering[name]:.3f}")
        console.print(table)
        importing, base = measure("import vitrail.weights.write")
        columns = ("conversion", "seconds", "peak MB", f"× {size:.0f} MB", "without the import")
        table = Table(*columns, title="Converting", title_justify="left")
        pairs = [("google.npz", "vitrail"), ("hf", "vitrail"), ("vitrail.safetensors", "hf")]
        pairs += [("vitrail.safetensors", "timm"), ("vitrail.safetensors", "torchvision")]
        for source, to in pairs:
            seconds, peak = measure_converting(folder / source, folder / f"to-{to}" / TARGETS[to], to)
            ratios = (f"{peak / size:.2f}", f"{(peak - base) / size:.2f}")
            table.add_row(f"{source} → {to}", f"{seconds:.1f}", f"{peak:.0f}", *ratios)
        table.add_row("(only importing)", f"{importing:.1f}", f"{base:.0f}", f"{base / size:.2f}", "0")
        console.print(table)


if __name__ == "__main__":
    main()
