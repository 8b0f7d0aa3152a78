"""Augmentation, batched on bytes (B, C, H, W) and deterministic: every draw follows from (seed, epoch, sample).

crops       random crops of pictures and of batches
ops         the pixel operations, equal to Pillow's
policies    RandAugment, AutoAugment, TrivialAugment, 3-Augment, colour jitter: which operation for which sample
pipeline    all of it in order, with random erasing, mixup and cutmix

What to do is data: `Augment` in `data/config.py`. The random numbers are in `rng.py`.
"""
