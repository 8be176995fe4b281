"""What the engine reaches of what the machine can do: kernels, whole steps, and their roofline."""
