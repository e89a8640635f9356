"""Measurement on the user's own machine."""
