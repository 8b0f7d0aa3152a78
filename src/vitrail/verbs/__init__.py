"""What vitrail does: each verb is a function here, which `vitrail` offers and from which `cli` builds its command.

A verb's own signature and docstring are its declaration: Python's arguments are the flags, and what the docstring says
of each is its help, except for sentences that begin with "In Python". The table below adds what only a command has. If
a command does more than call its verb, a function (`command`) does so, which declares the flags that Python does not
have. A verb's module loads without torch, so that its help and its mistakes are told at once.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich.console import RenderableType


class Result(Protocol):
    """What a verb returns can show itself: on a console, as JSON, and by `_repr_…_` in a notebook."""

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints, with the files that were written and a command to try next."""
        ...

    def to_dict(self) -> Any:
        """What the command prints with --json."""
        ...

    @property
    def exit_code(self) -> int:
        """0, or 1 if there were problems."""
        ...


@dataclass(frozen=True, kw_only=True)
class Output:
    """How the command shows what a verb returns."""

    word: Callable[[str], str] = str  # a text with its arguments as flags
    as_json: bool = False


@dataclass(frozen=True, kw_only=True)
class Verb:
    """What the command has beside the signature and the docstring of a verb's function."""

    group: str = ""
    line: str  # what `vitrail --help` shows
    usage: str = ""  # its arguments, where they are more than one name each
    about: str = ""  # what its own help adds to the line
    examples: tuple[str, ...] = ()  # shown at the top of its help
    home: str = ""  # module:function below vitrail.verbs, where they are not both the verb's name
    command: str = ""  # module:function that calls it for the command, and whose own keywords are flags too
    flags: Mapping[str, str] = field(default_factory=dict[str, str])  # argument → its flag, where the names differ
    headings: Mapping[str, str] = field(default_factory=dict[str, str])  # heading in the help → its arguments
    several: str = ""  # the positional arguments, if there may be any number: pictures (after a model) or models
    first: str = ""  # the positional argument before these, if that is not a model
    json: bool = True  # it has --json
    verbs: "Mapping[str, Verb]" = field(default_factory=dict[str, "Verb"])  # its own, instead of a function


SOURCE_FORMAT = {"source_format": "from"}

# In the order of a model's life, which is also that of `vitrail --help`.
VERBS = {
    "demo": Verb(
        group="Try it",
        line="Train a small ViT on handwritten digits, and show what it has learned.",
        examples=("vitrail demo",),
        home="train:demo",
        command="terminal:run_demo",
        json=False,
    ),
    "data": Verb(
        group="Pictures",
        line="Check or audit a data set, show how the model sees it, or write it as shards.",
        about="A data set is a folder of class folders, a CSV or Parquet table, CIFAR or MNIST files, shards, "
        "hf:NAME, or one of digits, cifar10, cifar100, mnist and fashion-mnist.",
        examples=(
            "vitrail data check photos",
            "vitrail data audit photos --weights hf://facebook/dinov2-small",
            "vitrail data show photos --policy rand",
        ),
        verbs={
            "check": Verb(
                line="Check every picture: counts, sizes, damaged files, duplicates, leakage between splits, "
                "imbalance.",
                about="Exit code 0: no problems (there may be notes). 1: warnings or errors that need attention. "
                "2: the data cannot be used, more pictures of a split cannot be read than --max-broken-rate allows, or "
                "the labels are no classes.",
                home="data:check_data",
            ),
            "audit": Verb(
                line="Find wrong labels, near duplicates, leaks between splits and outliers, by a model's features.",
                about="Writes labels.csv, duplicates.csv and outliers.csv, the worst first, and a sheet of pictures of "
                "each. Delete the rows that are fine, and pass the files to `vitrail train` with --exclude. Exit code "
                "0: nothing was found. 1: there is something to look at.",
                home="data_audit:audit_data",
            ),
            "show": Verb(
                line="Draw what the model really sees: training pictures after preprocessing and augmentation, epoch "
                "after epoch.",
                home="data:show_data",
                json=False,
            ),
            "shard": Verb(
                line="Write the data set as webdataset tar shards, shuffled, with a shards.json beside them.",
                about="Exit code 1: some pictures could not be read and were left out.",
                home="data:shard_data",
                json=False,
            ),
        },
    ),
    "pretrain": Verb(
        group="Make a model",
        line="Pre-train on pictures without labels, as a start for `train`.",
        usage="[DATA]",
        about="Masked pre-training (MAE): most patches of each picture are hidden, and the model learns to predict "
        "them from the others. Labels, where there are any, only serve a kNN probe, which shows whether the features "
        "get better. It starts from scratch unless --weights is passed. The "
        "result is a model without a head, for `vitrail train` to start from (--weights). Flags override the YAML "
        "file, which overrides the recipe. Under torchrun, all processes train one model.",
        examples=(
            "vitrail pretrain photos",
            "vitrail pretrain photos --weights hf://facebook/vit-mae-base --minutes 60",
            "vitrail pretrain --resume runs/pretrain-1",
        ),
        command="terminal:run_pretrain",
    ),
    "train": Verb(
        group="Make a model",
        line="Train or fine-tune on your pictures; resumable, in one process or many.",
        usage="[DATA]",
        about="By default, the model and the recipe are chosen to suit the pictures. Flags override the YAML "
        "file, which overrides the recipe. Under torchrun, all processes train one model.",
        examples=(
            "vitrail train photos",
            "vitrail train photos --minutes 30",
            "vitrail train --resume runs/train-1",
        ),
        command="terminal:run_train",
    ),
    "eval": Verb(
        group="Make a model",
        line="Evaluate a model: accuracy, calibration, confusion, the worst mistakes.",
        usage="[MODEL] DATA",
        about="Writes report.html, metrics.json, predictions.csv, classes.csv, confusion.csv, "
        "confusion_matrix.png, reliability.png and top_losses.jpg. Under torchrun the ranks share the "
        "pictures, and the result is the same. With --probe, a model without a head for these classes is "
        "measured by its features only. Exit code 1: some pictures could not be read, or no report could "
        "be made.",
        examples=("vitrail eval runs/train-1 photos", "vitrail eval runs/train-1 photos --robustness --tta flip"),
        home="evaluate:evaluate",
    ),
    "calibrate": Verb(
        group="Make a model",
        line="Measure how far to trust a checkpoint, and write that into it.",
        usage="MODEL DATA",
        about="A training run with a validation split has done this already.",
        examples=("vitrail calibrate hf://google/vit-base-patch16-224 photos",),
    ),
    "predict": Verb(
        group="Use it",
        line="Label or measure pictures: files, folders, patterns or standard input.",
        usage="[MODEL] PICTURES…",
        about="A picture that cannot be read becomes a row with its error, and the exit code is then 1.",
        examples=(
            "vitrail predict cat.jpg",
            "vitrail predict runs/train-1 photos --out labels.csv",
            "vitrail predict runs/train-1 s3://bucket/photos --job s3://bucket/labels",
        ),
        command="run_job:run_predict",
        flags={"list_file": "list"},
        headings={"Jobs, for archives": "job engine workers"},
        several="pictures",
        json=False,
    ),
    "embed": Verb(
        group="Use it",
        line="Write the embeddings of pictures, and draw a map of them.",
        usage="[MODEL] PICTURES… | [MODEL] --data DATA",
        about="See `vitrail predict --help` for what a model and a picture can be. For a data set, the labels "
        "and splits are written too. Pictures that cannot be read are left out and listed in errors.csv, and the exit "
        "code is then 1.",
        examples=("vitrail embed runs/train-1 photos", "vitrail embed runs/train-1 --data photos --map tsne"),
        command="run_job:run_embed",
        flags={"list_file": "list"},
        headings={"Jobs, for archives": "job engine workers resume"},
        several="pictures",
        json=False,
    ),
    "search": Verb(
        group="Use it",
        line="Find the pictures that are nearest to a picture, by their embeddings.",
        usage="INDEX PICTURES…",
        about="Writes search.jpg (each picture beside its neighbours), search.json and search.csv. Exit code 1: "
        "some of the pictures to search for could not be read.",
        examples=(
            "vitrail search runs/embed-1 cat.jpg --model runs/train-1",
            "vitrail search s3://bucket/out photos --top-k 5",
        ),
        several="pictures",
        first="index",
    ),
    "explain": Verb(
        group="Use it",
        line="Show which parts of a picture an answer rests on, and how far to trust that.",
        usage="[MODEL] PICTURES…",
        about="Writes overlays, heads, layers, and one sheet of them all. See `vitrail predict --help` for what "
        "a model and a picture can be. Exit code 1: some pictures could not be explained; the others "
        "were.",
        examples=("vitrail explain cat.jpg", "vitrail explain runs/train-1 photos --target cat --score"),
        several="pictures",
    ),
    "figures": Verb(
        group="Use it",
        line="Draw the paper's figures for a checkpoint.",
        usage="[MODEL] [PICTURES…]",
        about="Filters, positions, attention distance and attention, each as PDF and PNG. Exit code 1: some "
        "pictures could not be read.",
        examples=("vitrail figures runs/train-1", "vitrail figures runs/train-1 photos --out figures"),
        home="explain:figures",
        several="pictures",
    ),
    "inspect": Verb(
        group="Checkpoints",
        line="Show what a checkpoint is, and likely problems with it.",
        about="Exit code 1: the checkpoint cannot work as it is.",
        examples=("vitrail inspect B_16.npz", "vitrail inspect hf://google/vit-base-patch16-224"),
        flags=SOURCE_FORMAT,
    ),
    "convert": Verb(
        group="Checkpoints",
        line="Convert a checkpoint to another format, and prove that its outputs stay the same.",
        examples=(
            "vitrail convert B_16.npz vit-b16.safetensors",
            "vitrail convert runs/train-1 folder --to hf",
            "vitrail convert hf://openai/clip-vit-base-patch16 pets.safetensors --prompts pets.txt",
        ),
        flags={"format": "to", **SOURCE_FORMAT},
    ),
    "average": Verb(
        group="Checkpoints",
        line="Average the weights of several checkpoints of one model.",
        usage="MODELS… --out FILE",
        about="Classes are aligned by name. Checkpoints whose config, classes, task, preprocessing or data type "
        "differ are refused, and the error lists the differences.",
        examples=(
            "vitrail average runs/train-1 runs/train-2 --out mean.safetensors",
            "vitrail average a.safetensors b.safetensors --shares 1,3 --out c.safetensors",
        ),
        several="models",
    ),
    "diff": Verb(
        group="Checkpoints",
        line="Compare two models block by block: where they first differ, by how much, and why.",
        usage="A B",
        about="Exit code 0: they compute the same. 1: they differ.",
        examples=("vitrail diff old.safetensors new.safetensors", "vitrail diff vit.safetensors folder --library"),
    ),
    "export": Verb(
        group="Ship it",
        line="Export a model to ONNX, OpenVINO or torch.export, and prove that it answers the same.",
        usage="MODEL PATH | MODEL --repository DIR",
        examples=(
            "vitrail export runs/train-1 model.onnx",
            "vitrail export runs/train-1 folder --to openvino",
            "vitrail export runs/train-1 --repository models --name flowers",
        ),
        headings={
            "Eight bits": "precision calibrate agreement max_loss",
            "For Triton and OpenVINO Model Server": "repository name",
        },
    ),
    "benchmark": Verb(
        group="Ship it",
        line="Measure a model on every runtime, beside other libraries: speed, size, agreement, accuracy.",
        examples=(
            "vitrail benchmark runs/train-1",
            "vitrail benchmark runs/train-1 --merge 0,2,4,8 --data photos --out speed",
            "vitrail benchmark runs/train-1 --with model-int8 --compare timm,transformers",
        ),
        flags={"exports": "with", "compiled": "compile"},
    ),
    "push": Verb(
        group="Ship it",
        line="Push a model and its card to the Hugging Face hub, for vitrail, timm and transformers.",
        usage="MODEL OWNER/NAME",
        examples=(
            "vitrail push runs/train-1 anna/flowers --dry-run",
            "vitrail push runs/train-1 anna/flowers --licence apache-2.0",
            "vitrail predict hf://anna/flowers photos",
        ),
    ),
    "serve": Verb(
        group="Ship it",
        line="Serve models over HTTP, with a page to try them: predict, embed, explain.",
        usage="[MODEL | NAME=MODEL]…",
        about="Listens on this machine only, unless --host and a token say otherwise. Ctrl-C and SIGTERM answer what "
        "was accepted, then end. One line of JSON for each request goes to standard output.",
        examples=(
            "vitrail serve",
            "vitrail serve runs/train-1 --port 8080",
            "VITRAIL_TOKEN=… vitrail serve cats=runs/train-1 small=model.onnx --host 0.0.0.0",
        ),
        command="serve:run_serve",
        several="models",
        json=False,
    ),
    "models": Verb(
        group="Reference",
        line="List the model variants, or the pretrained weights to start from.",
        examples=("vitrail models", "vitrail models --pretrained --commercial --ungated --max-mb 100"),
    ),
    "summary": Verb(
        group="Reference",
        line="Show a model step by step: the shape after each step, parameters and MACs.",
        examples=("vitrail summary vit-b16", "vitrail summary runs/train-1"),
        home="inspect:summary",
    ),
    "doctor": Verb(
        group="Reference",
        line="Print what a bug report needs: versions, device, optional packages, cache.",
        about="The output is Markdown, ready to paste. Exit code 1: something is wrong; the report says what.",
        examples=("vitrail doctor", "vitrail doctor runs/train-1 --data photos"),
        json=False,
    ),
}
