"""The link between front end and engine process: messages, folder, heartbeat in shared memory. No torch."""
