"""Conformance checks of the OpenAI-compatible API, for any server: `octavo check`."""
