"""The native kernels for CPUs. `library.py` finds and loads them. Tests compare each with a torch version."""
