"""The API of Ollama, for applications that speak no other: each endpoint converts bodies, as in `openai`."""
