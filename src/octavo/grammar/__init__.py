"""Grammars: constraints on an answer, and the tokens that they allow next. Does not import torch.

The front end uses `limits` and `checker`: an engine gets only grammars that were compiled once before, in a
process that can be killed. The engine uses `compiler` and `matcher`.
"""
