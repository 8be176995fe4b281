"""HTTP: connections, bodies, API keys, host names, errors and server-sent events. Independent of models."""
