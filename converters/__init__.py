"""Foreign checkpoints in, localspec's own folders out."""
