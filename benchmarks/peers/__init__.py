"""Compare Octavo with other engines: the same weights, prompts and machine, with the engines taking turns."""
