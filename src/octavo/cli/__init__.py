"""The terminal: `octavo generate | chat | inspect | config show`."""
