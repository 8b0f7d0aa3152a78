"""What an explanation costs compared with transformers, and which explanation to trust on a checkpoint.

    python -m benchmarks.explain [--quick]                                   rollout: time and memory
    python -m benchmarks.explain --model M --data D [--pictures 500]         deletion and insertion of each method

The first explains one picture with a ViT-B/16 of random weights: a plain forward pass and our rollout, beside the
forward pass of transformers that returns all attentions (`attn_implementation="eager", output_attentions=True`) and the
same rollout computed from them. Best of interleaved rounds; memory is the peak that each adds to a process of its own.
The second uses pictures spread evenly over the test split (or val), and explains the predicted class.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import vitrail
from benchmarks.peers import transformers
from benchmarks.timing import best_seconds, print_machine
from vitrail.data import open_data
from vitrail.errors import ExplanationError
from vitrail.explanation import METHODS, Faithfulness, explain_by, measure, open_subject
from vitrail.explanation.faithfulness import STEPS, mean_of, random_map
from vitrail.explanation.relevance import rollout
from vitrail.model import ViT, create, variant

CONTESTANTS = ("plain forward", "vitrail rollout", "transformers, eager forward", "transformers, eager rollout")


def contestant(name: str, variant_name: str) -> Callable[[], object]:
    """One of the contestants, its model built, ready to run on one picture."""
    config = variant(variant_name)
    images = torch.randn(1, 3, *config.image_size)
    if not name.startswith("transformers"):
        model = create(config).eval()
        return (lambda: rollout(model, images)) if "rollout" in name else (lambda: plain(model, images))
    peer_config = transformers.ViTConfig(
        image_size=config.image_size[0],
        patch_size=config.patch_size[0],
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        num_attention_heads=config.heads,
        intermediate_size=config.hidden_width,
        num_labels=config.num_classes,
        attn_implementation="eager",
    )
    peer = transformers.ViTForImageClassification(peer_config).eval()
    return (lambda: peer_rollout(peer, images)) if "rollout" in name else (lambda: peer_forward(peer, images))


def plain(model: ViT, images: Tensor) -> Tensor:
    with torch.inference_mode():
        return model(images)


def peer_forward(peer: Any, images: Tensor) -> Any:
    with torch.inference_mode():
        return peer(pixel_values=images, output_attentions=True)


def peer_rollout(peer: Any, images: Tensor) -> Tensor:
    """The usual way: all attentions kept, averaged and multiplied."""
    attentions = peer_forward(peer, images).attentions
    with torch.inference_mode():
        identity = torch.eye(attentions[0].shape[-1])
        product = identity
        for attention in attentions:
            product = (attention.mean(dim=1) + identity) / 2 @ product
        return product[:, 0, 1:]


def peak_megabytes(name: str, variant_name: str) -> float:
    """The memory that one run adds at its peak, in a process of its own with the model already built."""
    code = (
        "import sys, torch\n"
        "from benchmarks.explain import contestant\n"
        "def peak(): return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])\n"
        f"run = contestant({name!r}, {variant_name!r})\n"
        "open('/proc/self/clear_refs', 'w').write('5')\n"  # resets the peak to what is in use now
        "before = peak(); run(); print((peak() - before) / 1e3)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def compare_costs(variant_name: str, quick: bool) -> None:
    runs = {name: contestant(name, variant_name) for name in CONTESTANTS}
    rounds, seconds = (2, 0.0) if quick else (10, 40.0)
    best = best_seconds(runs, rounds, seconds)
    memory = {name: peak_megabytes(name, variant_name) for name in CONTESTANTS}
    base = CONTESTANTS[0]
    title = f"one picture, {variant_name}, {torch.get_num_threads()} threads"
    table = Table("", "ms", "× plain forward", "peak MB", "more than plain", title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in CONTESTANTS:
        ratio, more = best[name] / best[base], memory[name] - memory[base]
        table.add_row(name, f"{1e3 * best[name]:.1f}", f"{ratio:.2f}", f"{memory[name]:.0f}", f"{more:+.0f}")
    Console(highlight=False, width=120).print(table)


def compare_methods(source: str, data: str, pictures: int, steps: int) -> None:
    loaded = vitrail.load(source)
    dataset = open_data(data)
    split = dataset.splits.get("test") or dataset.split("val")
    count = min(pictures, len(split))
    results: dict[str, list[Faithfulness]] = {name: [] for name in (*METHODS, "random")}
    failures = dict.fromkeys(METHODS, 0)
    for number in track(range(count), "judging", console=Console(stderr=True)):
        index = number * len(split) // count
        subject = open_subject(split.picture(index), loaded.preprocess, split.key(index))
        with torch.inference_mode():
            target = int(loaded.model(subject.image[None]).argmax())
        grid = loaded.model.config.grid
        results["random"].append(measure(loaded.model, subject.image, target, random_map(grid, number), steps))
        for method in METHODS:
            try:
                found = explain_by(loaded, subject, method, target)
            except ExplanationError:
                failures[method] += 1
                continue
            results[method].append(measure(loaded.model, subject.image, target, found.map, steps))
    title = f"{source} on {count} pictures of {data}, {steps} steps"
    table = Table("method", "deletion ↓", "insertion ↑", "score", "failed", title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    failed = {str(name): number for name, number in failures.items()}
    means = {name: mean_of(found) for name, found in results.items() if found}
    for name, mean in sorted(means.items(), key=lambda item: -item[1].score):
        numbers = (f"{mean.deletion:.4f}", f"{mean.insertion:.4f}", f"{mean.score:.4f}")
        table.add_row(name, *numbers, str(failed.get(name, 0)))
    Console(highlight=False, width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds: a quick look, not a measurement")
    parser.add_argument("--variant", default="vit-b16", help="the model whose cost is measured")
    parser.add_argument("--model", help="a checkpoint to score the methods on")
    parser.add_argument("--data", help="the data set to score them with")
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    print_machine("transformers")
    if arguments.model and arguments.data:
        compare_methods(arguments.model, arguments.data, arguments.pictures, arguments.steps)
    elif arguments.model or arguments.data:
        parser.error("--model and --data go together")
    else:
        compare_costs(arguments.variant, arguments.quick)


if __name__ == "__main__":
    main()
