"""Operation of the server: probes, metrics, request log, engine view and web page."""
