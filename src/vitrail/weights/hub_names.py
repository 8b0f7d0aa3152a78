"""Google's public checkpoints by their file names, and where the hub mirrors them (in timm's layout)."""

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
