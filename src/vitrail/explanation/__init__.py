"""What a checkpoint looks at, and how far to trust the picture of it.

passes        the model's forward pass, with the attention left to the caller
attention     raw attention from what the pooling reads; rollout and relevance: how it flows through the layers
occlusion     covering patches, as a plain check
faithfulness  deletion and insertion scores; choice selects a method by them (`explain` with method "auto")
explanation   one picture by one method, with its checks; geometry brings maps back onto the picture
explained     pictures with their explanations: what `vitrail.explain` returns, and the files that it writes
render        overlays and sheets; figures: the paper's figures for a checkpoint
"""

from vitrail.explanation.attention import AttentionMaps, attention_maps
from vitrail.explanation.faithfulness import Faithfulness, MethodChoice, choose, explain, measure
from vitrail.explanation.saliency import METHODS, Explanation, Loaded, Subject, explain_by, open_subject

__all__ = [
    "METHODS",
    "AttentionMaps",
    "Explanation",
    "Faithfulness",
    "Loaded",
    "MethodChoice",
    "Subject",
    "attention_maps",
    "choose",
    "explain",
    "explain_by",
    "measure",
    "open_subject",
]
