"""Does a server speak the API that OpenAI's clients expect? Asked of any server: `octavo check`."""
