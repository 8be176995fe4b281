"""The HTTP server with its OpenAI-compatible API. Field names of the API occur only in this package."""
