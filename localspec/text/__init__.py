"""Pure functions over strings: chat template, streaming detokeniser, stop strings. No MLX in here."""
