"""Octavo beside other engines: the same weights, the same prompts, the same machine, turn by turn."""
