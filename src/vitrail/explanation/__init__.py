"""What a checkpoint looks at, and how far to trust the picture of it.

passes         the model's forward pass, with the inputs of each attention shown
raw_attention  attention from what the pooling reads; relevance: how it flows through the layers
occlusion      covering patches, as a plain check
saliency       one picture by one method, with its checks, and where its map is in the picture
faithfulness   deletion and insertion scores, by which method "auto" is chosen
heatmap        overlays and sheets: how maps are drawn
gallery        explained pictures: what `vitrail.explain` returns, prints and writes
paper_figures  the paper's figures for a checkpoint
"""

from vitrail.explanation.faithfulness import Faithfulness, MethodChoice, choose, measure
from vitrail.explanation.raw_attention import AttentionMaps, attention_maps
from vitrail.explanation.saliency import METHODS, Explanation, Subject, explain_by, open_subject

__all__ = [
    "METHODS",
    "AttentionMaps",
    "Explanation",
    "Faithfulness",
    "MethodChoice",
    "Subject",
    "attention_maps",
    "choose",
    "explain_by",
    "measure",
    "open_subject",
]
