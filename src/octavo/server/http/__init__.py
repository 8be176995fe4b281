"""The connection: heads, bodies, keys, names, errors, server-sent events. Knows nothing of models."""
