"""`octavo replica`: an agent that runs one engine and offers it to front ends. No torch."""
