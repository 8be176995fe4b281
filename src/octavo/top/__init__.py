"""`octavo top`: a server's engine in a terminal, seen from outside through `GET /octavo/view`."""
