"""Addresses: what `hf://owner/name[@revision]` and `google://NAME` stand for, and how they are downloaded."""

import re
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from errno import ENOSPC
from pathlib import Path

from vitrail.errors import WeightsError
from vitrail.files import sha256_of, sweep_drafts
from vitrail.weights.sidecars import SIDECARS
from vitrail.wording import hint_path, reason

# Each line: model, pre-training data and recipe, fine-tuning on ImageNet ("-" where there was none), name at hf://timm/.
_AUGREG = """\
B_8 i21k aug_medium1-wd_0.1-do_0.0-sd_0.0 - vit_base_patch8_224.augreg_in21k
B_8 i21k aug_medium1-wd_0.1-do_0.0-sd_0.0 lr_0.01-res_224 vit_base_patch8_224.augreg_in21k_ft_in1k
B_16 i1k aug_strong2-wd_0.1-do_0.1-sd_0.1 lr_0.01-res_224 vit_base_patch16_224.augreg_in1k
B_16 i21k aug_medium1-wd_0.1-do_0.0-sd_0.0 - vit_base_patch16_224.augreg_in21k
B_16 i21k aug_medium1-wd_0.1-do_0.0-sd_0.0 lr_0.01-res_224 vit_base_patch16_224.augreg_in21k_ft_in1k
B_16 i1k aug_strong2-wd_0.1-do_0.1-sd_0.1 lr_0.01-res_384 vit_base_patch16_384.augreg_in1k
B_16 i21k aug_medium1-wd_0.1-do_0.0-sd_0.0 lr_0.01-res_384 vit_base_patch16_384.augreg_in21k_ft_in1k
B_32 i1k aug_medium2-wd_0.1-do_0.1-sd_0.1 lr_0.01-res_224 vit_base_patch32_224.augreg_in1k
B_32 i21k aug_medium1-wd_0.03-do_0.0-sd_0.0 - vit_base_patch32_224.augreg_in21k
B_32 i21k aug_medium1-wd_0.03-do_0.0-sd_0.0 lr_0.03-res_224 vit_base_patch32_224.augreg_in21k_ft_in1k
B_32 i1k aug_medium2-wd_0.1-do_0.1-sd_0.1 lr_0.01-res_384 vit_base_patch32_384.augreg_in1k
B_32 i21k aug_light1-wd_0.1-do_0.0-sd_0.0 lr_0.03-res_384 vit_base_patch32_384.augreg_in21k_ft_in1k
L_16 i21k aug_medium1-wd_0.1-do_0.1-sd_0.1 - vit_large_patch16_224.augreg_in21k
L_16 i21k aug_medium1-wd_0.1-do_0.1-sd_0.1 lr_0.01-res_224 vit_large_patch16_224.augreg_in21k_ft_in1k
L_16 i21k aug_medium1-wd_0.1-do_0.1-sd_0.1 lr_0.01-res_384 vit_large_patch16_384.augreg_in21k_ft_in1k
R50_L_32 i21k aug_medium2-wd_0.1-do_0.0-sd_0.0 - vit_large_r50_s32_224.augreg_in21k
R50_L_32 i21k aug_medium1-wd_0.1-do_0.1-sd_0.1 lr_0.01-res_224 vit_large_r50_s32_224.augreg_in21k_ft_in1k
R50_L_32 i21k aug_medium2-wd_0.1-do_0.0-sd_0.0 lr_0.01-res_384 vit_large_r50_s32_384.augreg_in21k_ft_in1k
S_16 i1k aug_medium2-wd_0.1-do_0.0-sd_0.0 lr_0.01-res_224 vit_small_patch16_224.augreg_in1k
S_16 i21k aug_light1-wd_0.03-do_0.0-sd_0.0 - vit_small_patch16_224.augreg_in21k
S_16 i21k aug_light1-wd_0.03-do_0.0-sd_0.0 lr_0.03-res_224 vit_small_patch16_224.augreg_in21k_ft_in1k
S_16 i1k aug_medium2-wd_0.1-do_0.0-sd_0.0 lr_0.01-res_384 vit_small_patch16_384.augreg_in1k
S_16 i21k aug_light1-wd_0.03-do_0.0-sd_0.0 lr_0.03-res_384 vit_small_patch16_384.augreg_in21k_ft_in1k
S_32 i21k aug_light1-wd_0.03-do_0.0-sd_0.0 - vit_small_patch32_224.augreg_in21k
S_32 i21k aug_light1-wd_0.03-do_0.0-sd_0.0 lr_0.03-res_224 vit_small_patch32_224.augreg_in21k_ft_in1k
S_32 i21k aug_light1-wd_0.03-do_0.0-sd_0.0 lr_0.03-res_384 vit_small_patch32_384.augreg_in21k_ft_in1k
R26_S_32 i21k aug_medium2-wd_0.03-do_0.0-sd_0.0 - vit_small_r26_s32_224.augreg_in21k
R26_S_32 i21k aug_light0-wd_0.03-do_0.1-sd_0.1 lr_0.03-res_224 vit_small_r26_s32_224.augreg_in21k_ft_in1k
R26_S_32 i21k aug_medium2-wd_0.03-do_0.0-sd_0.0 lr_0.03-res_384 vit_small_r26_s32_384.augreg_in21k_ft_in1k
Ti_16 i21k aug_none-wd_0.03-do_0.0-sd_0.0 - vit_tiny_patch16_224.augreg_in21k
Ti_16 i21k aug_none-wd_0.03-do_0.0-sd_0.0 lr_0.03-res_224 vit_tiny_patch16_224.augreg_in21k_ft_in1k
Ti_16 i21k aug_none-wd_0.03-do_0.0-sd_0.0 lr_0.03-res_384 vit_tiny_patch16_384.augreg_in21k_ft_in1k
R_Ti_16 i21k aug_none-wd_0.03-do_0.0-sd_0.0 - vit_tiny_r_s16_p8_224.augreg_in21k
R_Ti_16 i21k aug_none-wd_0.03-do_0.0-sd_0.0 lr_0.03-res_224 vit_tiny_r_s16_p8_224.augreg_in21k_ft_in1k
R_Ti_16 i21k aug_none-wd_0.03-do_0.0-sd_0.0 lr_0.03-res_384 vit_tiny_r_s16_p8_384.augreg_in21k_ft_in1k
"""


def _google_file(model: str, data: str, recipe: str, fine_tuning: str) -> str:
    """The name of the file in Google's bucket, without its suffix."""
    pretrained = f"{model}-{data}-300ep-lr_0.001-{recipe}"
    return pretrained if fine_tuning == "-" else f"{pretrained}--imagenet2012-steps_20k-{fine_tuning}"


# Google's file name → name at hf://timm/.
MIRRORS = {
    "imagenet21k/ViT-B_16": "vit_base_patch16_224.orig_in21k",
    "imagenet21k/ViT-B_32": "vit_base_patch32_224.orig_in21k",
    "imagenet21k/ViT-L_16": "vit_large_patch16_224.orig_in21k",
    "imagenet21k/ViT-L_32": "vit_large_patch32_224.orig_in21k",
    "imagenet21k/ViT-H_14": "vit_huge_patch14_224.orig_in21k",
    "imagenet21k/R50+ViT-B_16": "vit_base_r50_s16_224.orig_in21k",
    "imagenet21k+imagenet2012/ViT-B_16": "vit_base_patch16_384.orig_in21k_ft_in1k",
    "imagenet21k+imagenet2012/ViT-L_32": "vit_large_patch32_384.orig_in21k_ft_in1k",
    "imagenet21k+imagenet2012/R50+ViT-B_16": "vit_base_r50_s16_384.orig_in21k_ft_in1k",
    "sam/ViT-B_16": "vit_base_patch16_224.sam_in1k",
    "sam/ViT-B_32": "vit_base_patch32_224.sam_in1k",
    **{_google_file(*row[:4]): row[4] for row in (line.split() for line in _AUGREG.splitlines())},
}

OURS = "vitrail.safetensors"  # our own file beside other libraries', with all that they cannot hold
FILES = [*SIDECARS, OURS, "model.safetensors", "model.safetensors.index.json", "*.npz"]
SHARDS = ["model-*-of-*.safetensors"]
PICKLES = ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"]


def find_path(text: str, names: Iterable[str] = ()) -> Path:
    """The path of a checkpoint on this machine; an error suggests existing paths, or other names, that are similar."""
    path = Path(text).expanduser()
    with suppress(OSError, ValueError):  # a name that is too long, or with a NUL
        if not path.exists():
            sweep_drafts(path.parent)  # a process may have died while it replaced this folder
        if path.exists():
            return path
    hint = hint_path(text)
    if not hint and (near := get_close_matches(text, names, n=1)):
        hint = f"did you mean {near[0]}?"
    if not hint and re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        hint = f"for a model on the hub, write hf://{text}."
    raise WeightsError(f"there is no checkpoint {text}{f'; {hint}' if hint else '.'}")


def check_address(text: str) -> str:
    """The hub's `owner/name[@revision]` of an address, or "" for a path; an unknown kind of address is an error."""
    if text.startswith("google://"):
        return f"timm/{_mirror_of(text.removeprefix('google://'))}"
    if text.startswith("hf://"):
        identifier = text.removeprefix("hf://")
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", identifier.partition("@")[0]):
            raise WeightsError(f"a model on the hub is hf://owner/name, or hf://owner/name@revision; got {text}.")
        return identifier
    if "://" in text:
        raise WeightsError(f"a checkpoint is a path, hf://owner/name or google://NAME; got {text}.")
    return ""


def _mirror_of(name: str) -> str:
    """The hub's name for one of Google's; the beginning of a name is enough if it is unique."""
    stem = name.removeprefix("augreg/").removesuffix(".npz")
    begins = [release for release in MIRRORS if release.startswith(stem) or release.endswith(f"/{stem}")]
    if stem in MIRRORS or len(begins) == 1:
        return MIRRORS.get(stem) or MIRRORS[begins[0]]
    if begins:
        raise WeightsError(f"google://{name} could be any of these; write one in full: {', '.join(begins)}.")
    models = sorted({release.split("-")[0] for release in MIRRORS if "/" not in release})
    raise WeightsError(
        f"google://{name} is not a release that the hub mirrors; try google:// followed by one of {', '.join(models)}."
    )


def is_cached(identifier: str) -> bool:
    """Whether all that loading `owner/name[@revision]` takes is in the hub's cache, without asking the hub."""
    from huggingface_hub import snapshot_download

    name, _, revision = identifier.partition("@")
    try:
        folder = snapshot_download(name, revision=revision or None, allow_patterns=FILES, local_files_only=True)
    except Exception:  # whatever the cache looks like, there is nothing to use
        return False
    return any(each.suffix in (".safetensors", ".npz") for each in Path(folder).iterdir())


def download(identifier: str, allow_pickle: bool) -> Path:
    """The folder in the hub's own cache with the files of `owner/name[@revision]`; new ones are verified."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    name, _, revision = identifier.partition("@")
    patterns = [*FILES, *SHARDS, *(PICKLES if allow_pickle else [])]
    is_new = not is_cached(identifier)
    try:
        folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=[*SIDECARS, OURS]))
        if not (folder / OURS).is_file():  # which holds the same weights as the others
            folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=patterns))
    except LocalEntryNotFoundError as error:
        raise WeightsError(
            f"hf://{identifier} is not in the cache and the hub cannot be reached (HF_HUB_OFFLINE, or no network)."
        ) from error
    except Exception as error:  # of the hub, of the network's library or of the disk
        raise WeightsError(f"hf://{identifier} cannot be fetched: {_explain(error, name)}") from error
    if is_new:
        _verify(folder, identifier)
    return folder


def _explain(error: Exception, name: str) -> str:
    """Why a download has failed, and what to do, in one line."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return f"it is gated; accept its terms at https://huggingface.co/{name} and log in with: hf auth login"
    if isinstance(error, RepositoryNotFoundError):
        return "the hub has no such model, or it is private; check the name, or log in with: hf auth login"
    if isinstance(error, OSError) and error.errno == ENOSPC:
        return f"no space is left for the hub's cache in {HF_HUB_CACHE}; free some, or set HF_HOME to another disk"
    return (reason(error).splitlines() or [type(error).__name__])[0]


def _verify(folder: Path, identifier: str) -> None:
    """Compare downloaded files with the checksums by which the hub names them."""
    for file in folder.iterdir():
        blob = file.resolve()
        if re.fullmatch(r"[0-9a-f]{64}", blob.name) and sha256_of(blob) != blob.name:
            blob.unlink()
            file.unlink(missing_ok=True)
            raise WeightsError(f"hf://{identifier}: {file.name} was damaged on its way and is removed; run again.")
