"""Figures to text with styles; pure functions, tested without an app."""
