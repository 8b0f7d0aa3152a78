"""A model step by step: the shape after each step, its parameters and its multiply-adds (MACs) for one picture."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitrail.model.block import AttentionPool, Block
from vitrail.model.config import ViTConfig
from vitrail.model.positions import POSITIONS
from vitrail.model.relative import RELATIVE
from vitrail.model.vit import ViT
from vitrail.schema import to_dict
from vitrail.wording import counted

NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One line of the summary. A step inside the encoder stands for the same step of all blocks."""

    name: str
    shape: tuple[int, ...]  # of one picture, without the batch
    note: str = ""
    parameters: int = 0
    macs: int = 0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The steps of a model and their sums.

    `macs` counts every token in every block, as the literature does; `forward_macs` is what `forward` computes: less
    where [cls] is pooled, because the last block then computes only that token.
    """

    config: ViTConfig
    steps: tuple[Step, ...]
    parameters: int
    macs: int
    forward_macs: int
    name: str = field(default="", compare=False)  # as its user wrote it

    @property
    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """The steps as the cells of a table: name, shape, note, parameters and MACs."""
        return [
            (
                step.name,
                "×".join(map(str, step.shape)),
                step.note,
                f"{step.parameters:,}" if step.parameters else "",
                f"{step.macs / 1e6:,.1f} M" if step.macs else "",
            )
            for step in self.steps
        ]

    @property
    def total(self) -> tuple[str, str, str, str, str]:
        """The last row of that table."""
        return "total", "", "", f"{self.parameters:,}", f"{self.macs / 1e6:,.1f} M"

    def markdown(self) -> str:
        """The steps as a Markdown table."""
        lines = ["| step | shape | | parameters | MACs |", "|---|---|---|--:|--:|"]
        lines += [f"| {' | '.join([name.replace('  ', '&emsp;'), *cells])} |" for name, *cells in self.rows]
        lines.append(f"| {' | '.join(f'**{cell}**' if cell else '' for cell in self.total)} |")
        return "\n".join(lines)

    def _repr_markdown_(self) -> str:
        return self.markdown()

    exit_code = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: value for name, value in to_dict(self).items() if name != "name"}

    def lines(self) -> Iterator[Any]:
        """What `vitrail summary` prints."""
        from vitrail.progress import table

        shown = table(self.rows, "step", "shape", "", "parameters", "MACs", left=3)
        shown.add_section()
        shown.add_row(*self.total, style="bold")
        yield from ([self.name] if self.name else [])
        yield shown
        if self.forward_macs < self.macs:
            saved = 1 - self.forward_macs / self.macs
            count = self.config.summary_tokens
            read, those = ("[cls] is", "that token") if count == 1 else (f"the first {count} tokens are", "those")
            yield (
                f"\nforward computes {self.forward_macs / 1e6:,.1f} M MACs, {saved:.1%} fewer: only {read} read, so "
                f"the last block computes only {those}."
            )


def describe_positions(config: ViTConfig) -> str:
    """How the model knows where its patches are: what is added to them, and what attention knows."""
    added = POSITIONS[config.positions.kind].description
    if config.relative.kind == "none":
        return added
    relative = RELATIVE[config.relative.kind].description
    return relative if config.positions.kind == "none" else f"{added}, {relative}"


def describe_prefix(config: ViTConfig) -> str:
    """The tokens before the patches."""
    tokens = ["[cls]"] if config.class_token else []
    if config.registers:
        tokens += ["distillation token" if config.distilled else counted(config.registers, "register")]
    return " + ".join(tokens)


def summarize(config: ViTConfig) -> Summary:
    """Count without allocating anything, so that even ViT-G fits a laptop."""
    with torch.device("meta"):
        model = ViT(config).eval()
    steps = (*_embedding_steps(model), *_encoder_steps(model), *_head_steps(model))
    macs = sum(step.macs for step in steps)
    return Summary(
        config=config,
        steps=steps,
        parameters=_count(model),
        macs=macs,
        forward_macs=macs - _unread_macs(model),
    )


def _embedding_steps(model: ViT) -> list[Step]:
    config, embed = model.config, model.embed
    rows, columns = config.grid
    patches, width = rows * columns, config.width
    steps = [Step(name="picture", shape=(config.channels, *config.image_size), note="C × height × width")]
    if config.stem.kind != "patch":
        cells = tuple(side // config.stem.stride for side in config.image_size)
        shape = (embed.patches.in_channels, *cells)
        macs = _measure_macs(embed.stem, (1, config.channels, *config.image_size))
        steps.append(Step(name=f"{config.stem.kind} stem", shape=shape, parameters=_count(embed.stem), macs=macs))
    size = f"{config.patch_size[0]}×{config.patch_size[1]}"
    projected = patches * embed.patches.weight.numel()
    none_added = config.positions.kind == "none" and config.relative.kind != "none"
    own = _count(embed) - _count(embed.stem) - _count(embed.patches)
    return [
        *steps,
        Step(name="patches", shape=(rows, columns), note=f"{size}, rows × columns"),
        Step(name="patch embeddings", shape=(patches, width), parameters=_count(embed.patches), macs=projected),
        Step(
            name=" + ".join(filter(None, (describe_prefix(config), "positions"))),
            shape=(config.tokens, width),
            note="none; attention knows them" if none_added else POSITIONS[config.positions.kind].description,
            parameters=own,
        ),
        *([] if model.pre_norm is None else [_norm_step(config, model.pre_norm, (config.tokens, width))]),
    ]


def _norm_step(config: ViTConfig, norm: nn.Module, shape: tuple[int, ...]) -> Step:
    return Step(name=NORMS[config.block.norm], shape=shape, parameters=_count(norm))


def _encoder_steps(model: ViT) -> list[Step]:
    config, depth = model.config, model.config.depth
    tokens, width = config.tokens, config.width
    entering, leaving = config.block_tokens[:-1], config.block_tokens[1:]
    mlp = cast("Block", model.blocks[0]).mlp
    heads = (config.heads, tokens, config.head_size)

    def count(part: str) -> int:
        return sum(_count(block.get_submodule(part)) for block in model.blocks)

    norms = count("norm1"), count("norm2")
    scales, norm = count("branch1") + count("branch2"), NORMS[config.block.norm]
    attention = count("attention") - count("attention.qkv") - count("attention.proj")
    relative = "who attends to whom"
    if model.relative is not None:
        relative += f", {model.relative.description}"
        attention += _count(model.relative)
    matrices = sum(entering) * width * config.heads_width
    merging = [_merging_step(config)] if config.merge else []
    return [
        Step(name=f"encoder, {counted(depth, 'block')}", shape=(tokens, width), note="in each:", parameters=scales),
        Step(name=f"  {norm}", shape=(tokens, width), parameters=norms[0]),
        Step(name="  Q, K, V", shape=heads, parameters=count("attention.qkv"), macs=3 * matrices),
        Step(
            name="  attention",
            shape=(config.heads, tokens, tokens),
            note=relative,
            parameters=attention,
            macs=2 * sum(count * count for count in entering) * config.heads_width,
        ),
        Step(name="  projection, added", shape=(tokens, width), parameters=count("attention.proj"), macs=matrices),
        *merging,
        Step(name=f"  {norm}", shape=(leaving[0], width), parameters=norms[1]),
        Step(
            name="  MLP, added",
            shape=(leaving[0], width),
            note=f"through {config.hidden_width}, {mlp.description}",
            parameters=count("mlp"),
            macs=sum(leaving) * _matrix_weights(mlp),
        ),
    ]


def _merging_step(config: ViTConfig) -> Step:
    """The shapes of the encoder are those of the first block; this line says how they shrink."""
    macs = 0
    for tokens, count in zip(config.block_tokens, config.merge, strict=False):
        patches = tokens - config.prefix
        scores = (patches - patches // 2) * (patches // 2) * config.head_size
        macs += (scores + patches // 2 * count * config.width) if count else 0
    note = f"from {config.tokens} tokens to {config.block_tokens[-1]} after the last block"
    return Step(name="  token merging", shape=(config.block_tokens[1], config.width), note=note, macs=macs)


def _head_steps(model: ViT) -> list[Step]:
    config = model.config
    note = {"cls": "the [cls] token", "mean": "mean of the patches", "map": "attention pooling"}
    if config.summary_tokens > 1:
        note["cls"] = f"the first {config.summary_tokens} tokens"
    macs = _map_macs(config, model.pool) if isinstance(model.pool, AttentionPool) else 0
    pool = Step(
        name="pooling",
        shape=(config.pooled_width,),
        note=note[config.pooling],
        parameters=_count(model.pool),
        macs=macs,
    )
    steps = [pool]
    if model.norm is not None:
        shape = (config.block_tokens[-1], config.width) if config.pool_norm == "before" else (config.width,)
        norm = _norm_step(config, model.norm, shape)
        steps = [norm, pool] if config.pool_norm == "before" else [pool, norm]
    for name, layer, note_ in (
        ("representation", model.representation, "Linear, tanh"),
        ("projection", model.projection, "Linear without bias"),
        ("head", model.head, "logits"),
        ("distillation head", model.distilled_head, "logits, averaged with those of the head"),
    ):
        if layer is not None:
            shape, size = (layer.out_features,), layer.weight.numel()
            steps.append(Step(name=name, shape=shape, note=note_, parameters=_count(layer), macs=size))
    return steps


def _map_macs(config: ViTConfig, pool: AttentionPool) -> int:
    patches, square = config.block_tokens[-1] - config.pool_skips, config.width * config.width
    # keys and values of all patches, the probe's query and projection, its attention, its MLP
    return 2 * patches * square + 2 * square + 2 * patches * config.width + _matrix_weights(pool.mlp)


def _unread_macs(model: ViT) -> int:
    """What `forward` leaves out of the last block: everything but keys, values and queries of the unread tokens."""
    config = model.config
    if config.pooling != "cls":
        return 0
    tokens, heads = config.block_tokens[-1], config.heads_width  # nothing merges in the last block
    mlp = _matrix_weights(cast("Block", model.blocks[0]).mlp)
    return (tokens - config.summary_tokens) * (config.width * heads + mlp + 2 * tokens * heads)


def _matrix_weights(module: nn.Module) -> int:
    """Weights of the matrices inside, each of which multiplies once per token."""
    return sum(layer.weight.numel() for layer in module.modules() if isinstance(layer, nn.Linear))


def _measure_macs(module: nn.Module, shape: tuple[int, ...]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.empty(shape, device="meta"))
    return counter.get_total_flops() // 2


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
