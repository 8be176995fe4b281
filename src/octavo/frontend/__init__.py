"""The front end: text in, messages to the engine, text out. Does not import torch itself."""
