"""The section of a report about the training: its curves, and what they mean."""

from collections.abc import Sequence

from vitrail.report.page import Curve, Paragraph, Plot, Plots, Section
from vitrail.training.curves import Row, best_row


def training_section(rows: Sequence[Row], rates: dict[str, float], took: str) -> Section:
    """Loss, validation accuracy and learning rates; `rates` are the highest of each group of weights."""
    losses = [(row.epoch, row.val_loss) for row in rows if row.val_loss is not None]
    rights = [(row.epoch, row.val_accuracy) for row in rows if row.val_accuracy is not None]
    curves = [Curve(name="training", points=[(row.epoch, row.train_loss) for row in rows])]
    curves += [Curve(name="validation", points=losses, style="second")] if losses else []
    plots = [Plot(title="Loss", curves=curves)]
    text = f"{took}."
    if rights:
        kept = best_row([row for row in rows if row.val_accuracy is not None])
        best = (kept.epoch, kept.val_accuracy or 0.0)
        curve = Curve(name="validation", points=rights, style="second", mark=best)
        plots.append(Plot(title="Validation accuracy", curves=[curve], percent=True))
        when = f"after epoch {best[0]}" if best[0] else "of the head before fine-tuning"
        text += f" The best validation accuracy is {best[1]:.2%}, {when}"
        text += (
            ", whose weights were kept: val chose the epoch, so its figures are slightly optimistic."
            if len(rights) > 1
            else "."
        )
    if losses and rows[-1].train_loss > losses[-1][1]:
        text += (
            " The training loss is above validation's because it is averaged over each epoch, on augmented pictures."
        )
    plots.append(Plot(title="Learning rate", curves=_rate_curves(rows, rates), named=True))
    return Section(title="Training", blocks=[Paragraph(text=text), Plots(plots=plots)])


def _rate_curves(rows: Sequence[Row], rates: dict[str, float]) -> list[Curve]:
    """One curve per group of weights: a row holds the highest rate, and the others keep their share of it."""
    highest = max(rates.values())
    styles = ("first", "second", "third", "fourth")
    return [
        Curve(
            name=name,
            points=[(row.epoch, row.lr * rate / highest if highest else row.lr) for row in rows],
            style=style,
        )
        for (name, rate), style in zip(rates.items(), styles, strict=False)
    ]
