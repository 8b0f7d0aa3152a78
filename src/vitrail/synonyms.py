"""What a mistyped option should have been: the field's usual names lead to ours, for flags, arguments and YAML keys."""

from collections.abc import Iterable
from difflib import get_close_matches

# Our name → what other tools call it. A verb is suggested only what it has, so that one name may lead to several.
SYNONYMS = {
    "lr": "learning_rate lr0 base_lr max_lr peak_lr init_lr",
    "final_lr": "lrf min_lr end_lr eta_min",
    "epochs": "epoch num_epochs n_epochs max_epochs total_epochs num_train_epochs",
    "minutes": "time max_time time_limit time_budget",
    "image_size": "img_size imgsz input_size im_size resolution size",
    "size": "img_size imgsz input_size im_size resolution image_size",
    "batch_size": "bs batch train_batch_size per_device_train_batch_size per_gpu_batch_size mini_batch_size",
    "batch": "bs batch_size",
    "max_batch": "bs batch batch_size max_batch_size",
    "micro_batch": "accumulate accum_iter gradient_accumulation gradient_accumulation_steps accumulate_grad_batches",
    "weight_decay": "wd l2",
    "optimizer": "opt optim optimiser",
    "schedule": "sched scheduler lr_scheduler lr_schedule lr_scheduler_type",
    "warmup": "warmup_epochs warmup_steps warmup_ratio",
    "clip": "grad_clip clip_grad clip_norm max_grad_norm gradient_clip_val",
    "label_smoothing": "smoothing",
    "drop_path": "drop_path_rate stochastic_depth",
    "dropout": "drop drop_rate",
    "layer_decay": "llrd layerwise_lr_decay",
    "recompute": "gradient_checkpointing grad_checkpointing activation_checkpointing",
    "patience": "early_stop early_stopping early_stopping_patience",
    "flip_rate": "flip hflip fliplr horizontal_flip",
    "vertical_flip_rate": "vflip flipud vertical_flip",
    "policy": "aa auto_augment autoaugment randaugment trivialaugment augment augmentation",
    "erase_rate": "reprob random_erasing erasing cutout",
    "distill_weight": "alpha distill_alpha distillation_alpha kd_weight kd_alpha",
    "distill_temperature": "temperature tau distill_tau distillation_tau kd_temperature",
    "shares": "weights coefficients proportions",
    "outlier_rate": "outliers outlier_exposure oe",
    "jitter": "color_jitter colour_jitter",
    "ema": "model_ema ema_decay",
    "train": "freeze freeze_backbone linear_probe lora peft",
    "lora_rank": "rank lora_r",
    "lora_targets": "target_modules lora_target_modules",
    "weights": "pretrained pretrained_weights checkpoint ckpt ckpt_path init_checkpoint model_path finetune",
    "model": "arch architecture model_name backbone network variant checkpoint ckpt ckpt_path model_path weights",
    "resume": "resume_from resume_from_checkpoint continue",
    "out": "output output_dir outdir out_dir save_dir save_path save logdir log_dir project name run_name exp_name",
    "device": "gpu gpus cuda cpu devices accelerator",
    "precision": "amp use_amp fp16 bf16 half mixed_precision dtype int8 quantize quantization",
    "compile": "torch_compile torchcompile",
    "strategy": "distributed ddp fsdp",
    "workers": "num_workers n_workers dataloader_num_workers jobs",
    "threads": "num_threads n_threads workers num_workers",
    "seed": "random_seed random_state manual_seed",
    "save_minutes": "save_every save_freq save_interval save_steps save_period",
    "track": "tensorboard tb logger report_to wandb use_wandb wandb_project mlflow use_mlflow",
    "config": "cfg yaml config_file hyp",
    "data": "dataset dataset_path dataset_name data_path data_root train_dir train_data input input_dir images folder",
    "pictures": "data images image input input_dir source files folder dataset data_dir",
    "models": "model weights checkpoint ckpt",
    "val_rate": "val_split validation_split val_size val_ratio valid_pct",
    "test_rate": "test_split test_size test_ratio",
    "split": "subset partition",
    "classes": "class_names labels label_names names id2label",
    "top_k": "k top top_n num_predictions",
    "list": "file_list files_from",
    "runtime": "backend engine provider",
    "runtimes": "runtime backend backends engine",
    "target": "target_class class_name label",
    "to": "format output_format export_format",
    "from": "source_format input_format",
    "dynamic_size": "dynamic dynamic_axes",
    "overwrite": "force exist_ok",
    "host": "address bind ip",
    "token": "api_key auth auth_token",
}
# What we do not have → what to do instead, and what it is usually called.
ABSENT = {
    "vitrail does not know this service; `track=` names those that it knows": "comet clearml neptune aim",
    "vitrail has no class weights; a table may list the pictures of rare classes more than once": (
        "class_weight class_weights weighted_loss balanced pos_weight weighted_sampler"
    ),
    "several labels per picture are `task=several`": "multi_label multilabel",
    "numbers are `task=number`": "regression regress",
}


def suggest_option(typed: str, known: Iterable[str]) -> str:
    """What was probably meant by an unknown name, as the end of a sentence; nothing where nothing is near."""
    name, ours = _plain(typed), {_plain(each): each for each in known}
    for instead, names in ABSENT.items():
        if _means(name, names):
            return f"{instead}."
    near = [ours[_plain(mine)] for mine, names in SYNONYMS.items() if _means(name, names) and _plain(mine) in ours]
    near = near or [ours[each] for each in get_close_matches(name, ours, n=1, cutoff=0.75)]
    return f"did you mean {' or '.join(near[:3])}?" if near else ""


def _means(name: str, names: str) -> bool:
    return name in map(_plain, names.split())


def _plain(name: str) -> str:
    """However it is written: batch-size, batch_size and batchSize are one name."""
    return name[:100].strip("-'\"").replace("-", "").replace("_", "").lower()
