"""The front end: text in, messages to the engine, text out. Never imports torch by itself."""
