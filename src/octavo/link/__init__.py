"""What joins the front end to an engine process: messages, a folder, a page of shared memory. No torch."""
