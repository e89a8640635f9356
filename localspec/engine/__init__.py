"""Token ids in, token ids out: targets, rounds, acceptance, sampling, metrics. No text in here."""
