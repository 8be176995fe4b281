"""The HTTP server: what OpenAI's clients say, and what they expect to hear. Wire names live only here."""
