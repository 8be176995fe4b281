"""What models write besides text: reasoning and calls of tools. One reader for streams and whole answers."""
