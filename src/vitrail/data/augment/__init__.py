"""Augmentation, batched on bytes (B, C, H, W) and deterministic: every draw follows from (seed, epoch, sample).

config      `Augment`: what to do, as data
draws       the random numbers of each sample, from a counter instead of a state
crops       random crops of pictures and of batches
ops         the pixel operations, equal to Pillow's
policies    RandAugment, AutoAugment, TrivialAugment, 3-Augment, colour jitter: which operation for which sample
erasing     random erasing
mixing      mixup and cutmix, with soft targets
pipeline    all of it in order
"""
