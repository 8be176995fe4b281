"""Benchmarks of kernels, of whole steps and of servers, with the machine's limits as a roofline."""
