"""Parse reasoning and tool calls in answers. Streams and complete answers use the same reader."""
