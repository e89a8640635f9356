"""Training: a corpus from the target itself, objectives, the trainer and its checkpoints."""
