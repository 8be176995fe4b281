"""Decisions about many replicas. Pure: no sockets, no clock, no processes."""
