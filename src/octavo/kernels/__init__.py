"""The native kernels for CPUs. `library.py` finds and loads them; each has a torch oracle in the tests."""
