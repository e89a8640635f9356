"""The OpenAI-compatible endpoint: protocols, scheduling, transport. No MLX in here."""
