"""From pictures on disk to batches."""
