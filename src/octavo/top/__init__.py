"""`octavo top`: monitor a server's engine in a terminal, through `GET /octavo/view`."""
