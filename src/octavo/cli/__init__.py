"""The `octavo` command-line interface."""
