"""Prompts of a server, made in a process that can be killed: templates and tokenizers come from strangers."""
