"""The Anthropic API: messages, token counts, models and errors in their wire format."""
