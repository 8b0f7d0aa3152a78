"""The Vision Transformer."""
