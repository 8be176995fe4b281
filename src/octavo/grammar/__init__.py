"""Grammars: what an answer must conform to, and the tokens that may come next. No torch.

`limits` and `checker` are the front end's side: no grammar comes to an engine that was not compiled once
where that can be killed. `compiler` and `matcher` are the engine's.
"""
