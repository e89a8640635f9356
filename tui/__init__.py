"""The terminal chat: a Textual application in front of the engine. No MLX in here.

`engine.py` says what the chat needs of an engine, `local.py` is the real one.
"""
