"""Who starts, places, restarts and lists the replicas of a server."""
